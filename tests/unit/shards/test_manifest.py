import json

import pytest

from espnet3.errors import RunFolderError
from espnet3.io.shared_files import DamagedFileError
from espnet3.shards.layout import manifest_path
from espnet3.shards.manifest import (
    FORMAT,
    VERSION,
    Manifest,
    collect_items,
    load_manifest,
    publish_manifest,
    read_run_id,
)
from espnet3.shards.plan import make_plan


def planned(items, **values) -> Manifest:
    plan = make_plan(len(items), 3)
    return Manifest({}, len(items), plan.bounds, plan.costs, None, {"items": "…"}, **values)


def publish(root, values, **more) -> Manifest:
    items = collect_items(values)
    return publish_manifest(root, planned(items, **more), items)


@pytest.mark.parametrize("values", [range(10), [3, 1, 2], ["a", "b\n", "é"], []])
def test_manifest_and_items_come_back_as_they_were_written(folder, values):
    written = publish(folder, values, name="Décode", versions={"espnet3": "0.1"})
    assert load_manifest(folder) == written
    assert list(written.open_items(folder)[:]) == list(values)
    assert written.layout(folder).n_shards == written.n_shards == len(written.bounds) - 1


def test_no_manifest_is_no_run(folder):
    assert load_manifest(folder) is None
    assert load_manifest(folder / "absent") is None


def test_manifest_of_a_million_items_is_small_if_they_are_a_range(folder):
    publish(folder, range(1_000_000))
    assert [path.name for path in folder.iterdir()] == ["manifest.json"]
    assert (folder / "manifest.json").stat().st_size < 2000


def test_first_driver_wins_and_the_second_gets_its_plan(folder):
    first = publish(folder, [3, 1, 2])
    assert publish(folder, [3, 1, 2]) == first
    assert publish(folder, range(9)) == first
    assert load_manifest(folder) == first


def test_driver_with_other_items_that_comes_too_late_does_not_harm_those_of_the_first(folder):
    first = publish(folder, [3, 1, 2])
    assert publish(folder, [7, 5, 6]) == first
    assert list(first.open_items(folder)[:]) == [3, 1, 2]


def test_runs_have_ids_of_their_own(folder):
    assert planned(range(3)).run_id != planned(range(3)).run_id


def test_many_drivers_at_once_agree_on_one_plan(folder, race):
    code = """
        import sys
        from pathlib import Path
        from espnet3.shards.manifest import collect_items
        from espnet3.shards.manifest import Manifest, publish_manifest
        number, root = int(sys.argv[1]), Path(sys.argv[2])
        items = collect_items([number + 5, number, number + 3])
        go()
        for k in range(20):
            (root / str(k)).mkdir(exist_ok=True)
            manifest = Manifest({}, 3, [0, 1, 3], [1, 2], None, {})
            manifest = publish_manifest(root / str(k), manifest, items)
            print(manifest.run_id, list(manifest.open_items(root / str(k))[:]))
    """
    outputs = race(code, 4, folder)
    assert len(outputs[0]) == 20
    assert all(output == outputs[0] for output in outputs)


def test_lone_surrogate_in_the_fingerprint_survives(folder):
    items = collect_items(range(3))
    manifest = Manifest({}, 3, [0, 3], [3.0], None, {"config.path": "caf\udce9 \u2028 é"})
    publish_manifest(folder, manifest, items)
    assert load_manifest(folder).fingerprint == {"config.path": "caf\udce9 \u2028 é"}


def test_value_that_json_does_not_know_is_written_as_text(folder):
    items = collect_items(range(3))
    publish_manifest(folder, Manifest({}, 3, [0, 3], [3.0], None, {"path": folder}), items)
    assert load_manifest(folder).fingerprint == {"path": str(folder)}


def test_truncated_manifest_is_refused_with_how_to_go_on(folder):
    publish(folder, range(10))
    path = folder / "manifest.json"
    content = path.read_bytes().rstrip()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(RunFolderError, match="Start over with resume=False, or restore the f"):
            load_manifest(folder)


@pytest.mark.parametrize(
    "foreign", ["[]", "1", "null", "{}", '{"version": 1}', '{"format": "other", "version": 1}']
)
def test_manifest_json_of_someone_else_is_refused_and_not_to_be_overwritten(folder, foreign):
    (folder / "manifest.json").write_text(foreign)
    for read in (lambda: load_manifest(folder), lambda: publish(folder, range(3))):
        with pytest.raises(RunFolderError, match="Use another output_dir, or move that file away"):
            read()
    assert (folder / "manifest.json").read_text() == foreign


@pytest.mark.parametrize("version", [0, VERSION + 1, "1", None])
def test_manifest_of_another_version_names_both_and_who_can_finish_it(folder, version):
    publish(folder, range(3), versions={"espnet3": "9.9"})
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": version}))
    with pytest.raises(RunFolderError) as error:
        load_manifest(folder)
    assert f"has version {version} of the run format" in str(error.value)
    assert f"reads version {VERSION}" in str(error.value)
    assert "Finish the run with the ESPnet3 that began it (9.9)" in str(error.value)
    assert "resume=False" in str(error.value)


@pytest.mark.parametrize("versions", [None, "0.1", [], {}])
def test_manifest_of_another_version_need_not_say_who_wrote_it(folder, versions):
    values = {"format": FORMAT, "version": VERSION + 1, "versions": versions}
    (folder / "manifest.json").write_text(json.dumps(values))
    with pytest.raises(RunFolderError, match=r"began it \(unknown\)"):
        load_manifest(folder)


def test_manifest_without_a_key_is_damaged(folder):
    publish(folder, range(3))
    path = folder / "manifest.json"
    values = json.loads(path.read_text())
    del values["bounds"]
    path.write_text(json.dumps(values))
    with pytest.raises(DamagedFileError, match=r"is damaged.*bounds.*Start over with resume=False"):
        load_manifest(folder)


def test_manifest_of_a_version_that_says_more_is_read(folder):
    written = publish(folder, range(3))
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "novel": 1}))
    assert load_manifest(folder) == written


def test_folder_in_place_of_the_manifest_is_refused(folder):
    (folder / "manifest.json").mkdir()
    with pytest.raises(RunFolderError, match="Start over with resume=False"):
        load_manifest(folder)


def test_file_in_place_of_the_run_folder_is_refused(folder):
    (folder / "run").write_text("")
    with pytest.raises(RunFolderError, match=r"is not a folder\. Choose another output_dir"):
        load_manifest(folder / "run")


def test_manifest_that_vanishes_while_publishing_says_to_run_again(folder, monkeypatch):
    publish(folder, range(3))
    monkeypatch.setattr("espnet3.shards.manifest.load_manifest", lambda root: None)
    with pytest.raises(RunFolderError, match="Run the command again"):
        publish(folder, range(3))


def test_run_id_is_read_also_from_a_manifest_that_was_reformatted_by_hand(folder):
    assert read_run_id(folder) is None
    written = publish(folder, range(3))
    assert read_run_id(folder) == written.run_id
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()), sort_keys=True))
    assert read_run_id(folder) == written.run_id


def test_damaged_manifest_has_no_run_id_but_an_error(folder):
    (folder / "manifest.json").write_text("{")
    with pytest.raises(RunFolderError, match="Start over with resume=False, or restore the file"):
        read_run_id(folder)


@pytest.mark.parametrize(
    "values", [[f"utt{n}" for n in range(3000)], [n * 7 % 3001 for n in range(3000)]]
)
@pytest.mark.parametrize("is_of_before", [False, True])
def test_items_sorted_into_batches_are_read_in_the_order_of_the_plan(folder, values, is_of_before):
    items = collect_items(values)
    plan = make_plan(3000, 7, batch_seconds=20, costs=[1 + n % 9 for n in range(3000)])
    manifest = Manifest({}, 3000, plan.bounds, plan.costs, None, {})
    publish_manifest(folder, manifest, items, plan.batches)
    if is_of_before:  # a run folder without indices
        for path in folder.glob("*.index"):
            path.unlink()
        text = manifest_path(folder).read_text()
        written = json.loads(text)
        del written["items"]["index"], written["batches"]["items"]
        del written["batches"]["order"]["index"]
        manifest_path(folder).write_text(json.dumps(written))
    read = load_manifest(folder)
    expected = [values[position] for position in plan.batches.order]
    for opened in (read.open_items(folder), read.open_items(folder, items)):
        assert list(opened[1200:1300]) == expected[1200:1300]
    assert list(read.load_edges(folder)) == list(plan.batches.edges)
    assert list(read.load_order(folder)) == list(plan.batches.order)
