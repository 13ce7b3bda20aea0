"""docs/scaling.md names the options and columns that there are, and its tables are whole."""

import re

from espnet3.cli.main import main
from tests.helpers.pages import DOCS, code_in, table

PAGE = DOCS / "scaling.md"
TEXT = PAGE.read_text()


def test_every_option_is_explained_with_its_default(capsys):
    main(["scaling", "--help"])
    shown = re.sub(r"\s+", " ", capsys.readouterr().out)
    told = [code_in(row[0])[0].split()[0] for row in table(PAGE, "# Scaling")]
    assert told[:-1] == re.findall(r" (--[a-z]+)(?= (?:N|S|items))", shown.partition("options:")[2])
    assert "(default: 200)" in shown
    assert "(default: 0.5)" in shown


def test_every_column_is_explained(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.yaml").write_text("parallel: {env: local}\n")
    assert (
        main(["scaling", "here.yaml", "--workers", "1", "--items", "2", "--seconds", "0.01"]) == 0
    )
    head = capsys.readouterr().out.splitlines()[0]
    columns = [cell.strip() for cell in head.strip("|").split("|")]
    for column in columns[3:]:
        assert f"- **{column.removesuffix(' (s)')}**" in TEXT
    assert head in TEXT  # of the tables that were measured


def test_the_efficiency_of_each_measured_row_follows_from_its_wall_time():
    n_rows = 0
    for part in TEXT.split("| environment |")[1:]:
        rows = re.findall(
            r"^\| ([^|]+) \| (\d+)[^|]* \|(?:[^|]+\|){3} ([\d.]+) \| (\d+)% \|$", part, re.M
        )
        first = rows[0]
        for _, n_workers, wall, efficiency in rows:
            ideal = float(first[2]) * int(first[1]) / (float(wall) * int(n_workers))
            assert abs(100 * ideal - int(efficiency)) < 2
            n_rows += 1
    assert n_rows >= 4
