"""The habits of run.sh in the public recipes: followed exactly, or said to be unknown."""

import pytest

from espnet3.migration.shell_commands import ScriptReader
from espnet3.migration.shell_syntax import ShellError
from espnet3.migration.shell_values import Unknown


def options(script: str, sources: dict[str, str] | None = None) -> dict[str, object]:
    """Return the options of the first call, by name; unknown values as their reason."""
    words = call(script, sources).words
    texts = [f"?{w.value.reason}" if isinstance(w.value, Unknown) else w.value for w in words]
    return dict(zip(texts[::2], texts[1::2], strict=False))


def call(script: str, sources: dict[str, str] | None = None):
    files = sources or {}
    reader = ScriptReader(lambda path: (files[path], path) if path in files else None)
    reader.read(script, "run.sh")
    return next(c for c in reader.calls if c.program == "./asr.sh")


HABITS = {
    "a variable in a value": ("s=dev\n./asr.sh --valid_set ${s}", {"--valid_set": "dev"}),
    "a variable inside a longer word": (
        'l=en\n./asr.sh --train_set "train_${l}_all" --t $l-x',
        {"--train_set": "train_en_all", "--t": "en-x"},
    ),
    "a variable set from another": ("a=x\nb=${a}_y\n./asr.sh --o $b", {"--o": "x_y"}),
    "options within a quoted value": (
        './asr.sh --asr_args "--max_epoch 5 --optim_conf lr=0.1"',
        {"--asr_args": "--max_epoch 5 --optim_conf lr=0.1"},
    ),
    "a comment behind an assignment": (
        "nbpe=500  # number of tokens\n./asr.sh --nbpe $nbpe",
        {"--nbpe": "500"},
    ),
    "a hash inside of a word is no comment": ("./asr.sh --o a#b", {"--o": "a#b"}),
    "a backslash glued to the word": (
        "./asr.sh --ngpu 1\\\n    --nj 2",
        {"--ngpu": "1", "--nj": "2"},
    ),
    "several options on a line": (
        "./asr.sh --a 1 --b 2 \\\n --c 3",
        {"--a": "1", "--b": "2", "--c": "3"},
    ),
    "arguments of the user not last": ('./asr.sh --a 1 "$@" --b 2', {"--a": "1", "--b": "2"}),
    "arguments of the user unquoted": ("./asr.sh --a 1 $@", {"--a": "1"}),
    "an if that can be decided": (
        'l=fr\nif [ "$l" = zh ]; then n=1\nelif [[ "fr it" == *"${l}"* ]]; then n=2\nelse n=3\nfi\n'
        "./asr.sh --n $n",
        {"--n": "2"},
    ),
    "a switch as a condition": (
        "x=true\nif ${x}; then n=1; else n=2; fi\n./asr.sh --n $n",
        {"--n": "1"},
    ),
    "numbers compared": ("g=4\nif [ $g -gt 1 ]; then n=1; fi\n./asr.sh --n ${n}", {"--n": "1"}),
    "a default": ("./asr.sh --a ${a:-5} --b ${b-6}", {"--a": "5", "--b": "6"}),
    "an ending cut off": (
        "a=train_sp\n./asr.sh --a ${a%_sp} --b ${a##*_}",
        {"--a": "train", "--b": "sp"},
    ),
    "a text replaced": (
        "a=x_y_z\n./asr.sh --a ${a/_/-} --b ${a//_/}",
        {"--a": "x-y_z", "--b": "xyz"},
    ),
    "a loop with +=": (
        'sets=""\nfor l in en de; do\n  sets+="test_${l} "\ndone\n./asr.sh --test_sets "${sets}"',
        {"--test_sets": "test_en test_de "},
    ),
    "a sourced file": ('. ./vars.sh\n./asr.sh --a "$a"', {"--a": "from a file"}),
    "a variable that holds whole options": (
        'opts="--use_lm true --lm_config conf/lm.yaml"\n./asr.sh ${opts} --ngpu 1',
        {"--use_lm": "true", "--lm_config": "conf/lm.yaml", "--ngpu": "1"},
    ),
    "an empty value": ("./asr.sh --a \"\" --b '' --c 1", {"--a": "", "--b": "", "--c": "1"}),
    "an array": (
        'o=(--a 1 --b "2 3")\no+=(--c 4)\n./asr.sh "${o[@]}"',
        {"--a": "1", "--b": "2 3", "--c": "4"},
    ),
    "a function": ('f() {\n  ./asr.sh --lang "$1"\n}\nf ja', {"--lang": "ja"}),
    "a here-document": (
        "cat << 'EOF' > conf/x\nit's ./asr.sh --a 0 \"\nEOF\n./asr.sh --a 1",
        {"--a": "1"},
    ),
    "a list over several lines": ('./asr.sh --t "a\n   b"', {"--t": "a\n   b"}),
    "sets with a slash": ("./asr.sh --t dev/clean", {"--t": "dev/clean"}),
    "CRLF": ("./asr.sh --a 1 \\\r\n --b 2\r\n", {"--a": "1", "--b": "2"}),
    "a test that runs Python": (
        'if ! python3 -c "import x" &> /dev/null; then\n  exit 1\nfi\n./asr.sh --a 1',
        {"--a": "1"},
    ),
    "a condition behind &&": ("x=1\n[ $x = 1 ] && y=2\n./asr.sh --y $y", {"--y": "2"}),
    "an environment before the call": ("CUDA_VISIBLE_DEVICES=0 ./asr.sh --a 1", {"--a": "1"}),
    "an export": ("export a=3\n./asr.sh --a $a", {"--a": "3"}),
    "a log function": ('log() {\n  echo "$(date) $*"\n}\nlog start\n./asr.sh --a 1', {"--a": "1"}),
    "a loop that is left": (
        "for x in a b c; do s=$x; if [ $x = b ]; then break; fi; done\n./asr.sh --s $s",
        {"--s": "b"},
    ),
    "a loop that goes on": (
        'for x in a b; do if [ $x = a ]; then continue; fi; s+="$x "; done\n./asr.sh --s "$s"',
        {"--s": "b "},
    ),
    "an array as one word": ('s=(a b)\n./asr.sh --s "${s[*]}"', {"--s": "a b"}),
    "a variable that is unset": ("n=5\nunset n\n./asr.sh --n ${n:-30}", {"--n": "30"}),
    "started by another command": ("nohup nice -n 5 bash ./asr.sh --a 1", {"--a": "1"}),
    "a case that can be decided": (
        'm=base\ncase "${m}" in\n tiny|small) n=1 ;;\n (ba*) n=2;;\n *) n=3 ;;\nesac\n'
        "./asr.sh --n $n",
        {"--n": "2"},
    ),
    "a pattern that is quoted": (
        "m=base\ncase $m in\n 'ba*') n=1 ;;\n *) n=2 ;;\nesac\n./asr.sh --n $n",
        {"--n": "2"},
    ),
    "a name of units by echo and tr": (
        'f=wavlm_large/21\nu=$(echo "${f}_km20" | tr "/" "_")\n'
        "./asr.sh --u ${u} --b $(basename ./a/b.sh .sh)",
        {"--u": "wavlm_large_21_km20", "--b": "b"},
    ),
    "words that sed and tr change": (
        "l=EN/US\n./asr.sh --a $(echo $l | tr A-Z a-z | sed -e 's:/:_:g') --b `dirname x/y`",
        {"--a": "en_us", "--b": "x"},
    ),
    "a default of several words": (
        './asr.sh --a "${a:-0.9 1.0 1.1}" --b "${b:-"x y"}"',
        {"--a": "0.9 1.0 1.1", "--b": "x y"},
    ),
    "a case that does not matter": (
        "case $1 in\n a|b) x=1;;\n *) x=2 ;;\nesac\n./asr.sh --a 1",
        {"--a": "1"},
    ),
}


@pytest.mark.parametrize("habit", HABITS)
def test_a_habit_of_the_public_recipes_is_read_as_the_shell_reads_it(habit):
    script, expected = HABITS[habit]
    assert options(script, {"./vars.sh": 'a="from a file"\n'}) == expected


NOT_GUESSED = {
    "the output of a command": ("n=$(wc -l < f)\n./asr.sh --n $n", "output of a command"),
    "echo through another command": ("n=$(echo a b | wc -w)\n./asr.sh --n $n", "output of a"),
    "echo of a file": ("n=$(tr a b < f)\n./asr.sh --n $n", "output of a command"),
    "a pattern of sed": ("n=$(echo a.b | sed s/.b/c/)\n./asr.sh --n $n", "output of a command"),
    "backticks": ("n=`nproc`\n./asr.sh --n $n", "output of a command"),
    "a variable of the environment": ("./asr.sh --n ${CORPUS}", "in no file that was read"),
    "set where a file exists": (
        "n=1\nif [ -e f ]; then n=2; fi\n./asr.sh --n $n", "in a condition or loop",
    ),
    "set where Python has a module": (
        'if python -c "import x"; then n=1; fi\n./asr.sh --n $n', "in a condition or loop",
    ),
    "set in a case": ("case $1 in\n a) n=1;;\nesac\n./asr.sh --n $n", "in a condition or loop"),
    "set in a while loop": ("while read l; do n=$l; done\n./asr.sh --n $n", "in a condition"),
    "set behind an unknown &&": ("grep x f && n=1\n./asr.sh --n $n", "in a condition or loop"),
    "computed": ("n=1\n((n += 1))\n./asr.sh --n $n", "it is computed"),
    "counted": ("n=1\n((n++))\n./asr.sh --n $n", "it is computed"),
    "read": ("n=1\nread -r n < f\n./asr.sh --n $n", "it is computed"),
    "printed": ("n=1\nprintf -v n %d 9\n./asr.sh --n $n", "it is computed"),
    "by let": ("n=1\nlet n=n+1\n./asr.sh --n $n", "it is computed"),
    "sourced where a file exists": (
        "n=1\nif [ -e f ]; then . ./n.sh; fi\n./asr.sh --n $n", "in a condition or loop",
    ),
    "behind a loop that may have been left": (
        "for x in a b; do n=$x; [ -e f ] && break; done\n./asr.sh --n $n", "in a condition or loop",
    ),
    "an argument of the script": ("./asr.sh --n $1", "argument of the script"),
    "a loop over files": ("for f in data/*; do n=$f; done\n./asr.sh --n $n", "in a condition or"),
    "braces": ("./asr.sh --n test_{a,b}", "not expanded"),
    "an unknown part of a word": ("./asr.sh --n train_$(date)_x", "output of a command"),
}  # fmt: skip


@pytest.mark.parametrize("habit", NOT_GUESSED)
def test_what_only_a_running_shell_could_tell_is_not_guessed(habit):
    script, reason = NOT_GUESSED[habit]
    found = options(script, {"./n.sh": "n=2\n"})["--n"]
    assert found.startswith("?")
    assert reason in found


def test_lines_are_those_of_the_file():
    words = call('# x\n\na=1\n./asr.sh \\\n  --a 1 \\\n  --b "c\nd" \\\n  --e 2').words
    assert [(w.value, w.line) for w in words][::2] == [("--a", 5), ("--b", 6), ("--e", 8)]


def test_a_script_that_never_ends_is_left(monkeypatch):
    reader = ScriptReader()
    reader.read("f() { f; f; }\nf\n./asr.sh --a 1", "run.sh")
    assert any("more loops" in remark.text for remark in reader.remarks)


@pytest.mark.parametrize(
    ("script", "line"),
    [
        ('a=1\nb="open\n', 2), ("a='open", 1), ("if true; then\n a=1\n", 1), ("x=$(open\n", 1),
        ("for a in b; do\n c=1\n", 1), ("done\n", 1), ("case x in\n a) b=1\n", 1), ("f() {\n", 1),
    ],
)  # fmt: skip
def test_a_script_that_is_cut_off_is_one_clear_error(script, line):
    with pytest.raises(ShellError, match=rf"run\.sh:{line} .*bash -n run\.sh"):
        ScriptReader().read(script, "run.sh")


def test_nothing_is_run(tmp_path):
    mark = tmp_path / "mark"
    ScriptReader().read(f"touch {mark}\nx=$(touch {mark})\n`touch {mark}`\n", "run.sh")
    assert not mark.exists()
