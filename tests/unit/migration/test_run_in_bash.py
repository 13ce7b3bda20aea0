"""What bash really passes to `asr.sh`, beside what is read of the same `run.sh` without running it.

Bash is the oracle: each script runs with an `asr.sh` that writes its arguments down. An option must
have been read with that value, or be listed as one that is not known.
"""

import subprocess
from pathlib import Path

import pytest

from espnet3.migration.source_recipe import SourceRecipe, read_recipe
from tests.helpers.census_settings import N_RECIPES, make_settings
from tests.helpers.census_shell import Speller
from tests.helpers.exhaustive import few

STUB = """#!/usr/bin/env bash
printf '%s\\0' "$@" "<end>" >> "$(dirname "$0")/passed"
"""
FILES = {
    "asr.sh": STUB,
    "utils/parse_options.sh": "",
    "path.sh": "",
    "cmd.sh": 'export train_cmd="run.pl"\n',
    "conf/vars.sh": 'nbpe=500\nlang="de"\n',
    "conf/args.sh": 'asr_args="--max_epoch 3"\nasr_args="${asr_args} --patience 1"\n',
    "conf/train_asr.yaml": "max_epoch: 1\n",
    "local/data.sh": "exit 0\n",
    "local/prepare_extra.py": "#!/bin/true\n",
    "data/tr/text": "a b\n",
    "db.sh": "CORPUS=downloads\n",
}
HEAD = "#!/usr/bin/env bash\nset -e\nset -u\nset -o pipefail\n\n"

FOLLOWED = {
    "user arguments before the options": './asr.sh "$@" --lang en --nbpe 5\n',
    "user arguments in the middle, braces": './asr.sh --lang en "${@}" \\\n  --nbpe 5 $*\n',
    "blank lines and comments around a call": (
        "# ./asr.sh --lang no \\\n./asr.sh \\\n    --lang en \\\n    --nbpe 5  # --nbpe 7 \\\n"
        "# --ngpu 2\n"
    ),
    "a comment behind a backslash and a blank": "./asr.sh --lang en \\ # none\n",
    "a comment ends a continued command": (
        "./asr.sh --lang en \\\n  # --nbpe 3 \\\n  --ngpu 2 || true\n"
    ),
    "calls in if and else": (
        'stage=2\nif [ $stage -le 1 ]; then\n  ./asr.sh --lang a --ngpu 0\nelse\n'
        "  ./asr.sh --lang b --ngpu 2\nfi\n"
    ),
    "a loop over test sets": (
        'test_sets=\nfor l in en de "a b"; do\n  test_sets="${test_sets} test_${l}"\ndone\n'
        './asr.sh --test_sets "${test_sets}"\n'
    ),
    "a loop over a list with removal of the blank": (
        'sets=""\nfor d in dev test; do sets+=" ${d}_x"; done 2>/dev/null\n'
        './asr.sh --test_sets "${sets# }"\n'
    ),
    "asr_args added to": (
        'asr_args="--max_epoch 5"\nasr_args+=" --optim_conf lr=0.1"\n'
        './asr.sh --asr_args "$asr_args"\n'
    ),
    "defaults": (
        './asr.sh --lang ${lang:-en} --nbpe "${nbpe-${n:-7}}" --tag "${t:-a b}"\n'
    ),
    "a default that assigns": ': ${n:=5}\n./asr.sh --nbpe ${n} --nj "${nj:=4}" --ngpu $nj\n',
    "cut at a pattern": (
        "f=conf/tuning/train.asr.yaml\n"
        "./asr.sh --a ${f%%.*} --b ${f%.*} --c ${f##*/} --d ${f#*/}\n"
    ),
    "replaced by patterns": (
        "f=a/b/c.d\n"
        "./asr.sh --a ${f//\\//_} --b ${f/b/x} --c ${f/#a/y} --d ${f/%d/z} --e ${f//./}\n"
    ),
    "letters in upper and lower case": "l=En\n./asr.sh --a ${l,,} --b ${l^^} --c ${l,} --d ${l^}\n",
    "a part of a text": "s=abcdef\n./asr.sh --a ${s:2} --b ${s:1:3} --c ${#s} --d ${s: -2}\n",
    "an array with an index": 'a=(x "y z" w)\n./asr.sh --a ${a[0]} --b "${a[1]}" --n ${#a[@]}\n',
    "an array over lines with comments": (
        'opts=(\n  --lang en  # the language\n  --nbpe 5\n  # --ngpu 8\n  --ngpu 2\n)\n'
        './asr.sh "${opts[@]}"\n'
    ),
    "an array of options added to, as one word": (
        'o=(--lang en)\no+=(--nbpe 5)\nexport IFS\n./asr.sh ${o[*]} --tag "x${o[0]}"\n'
    ),
    "a here-document with a call in it": (
        "cat <<-EOF > conf/x.yaml\n\t./asr.sh --lang no\n\tEOF\n"
        "cat > conf/y <<'E'\n$(x) ` \" '\nE\n./asr.sh --lang en\n"
    ),
    "a here-string": 'cat <<< "./asr.sh --lang no" > /dev/null\n./asr.sh --lang en\n',
    "sourced files": (
        '. ./path.sh\n. ./cmd.sh || exit 1;\nsource conf/vars.sh\n. "./conf/args.sh"\n'
        './asr.sh --nbpe "$nbpe" --lang $lang --asr_args "${asr_args}"\n'
    ),
    "sets with a slash": (
        'c=AISHELL-1\n./asr.sh --train_set "${c}/train" --test_sets "${c}/dev ${c}/test"\n'
    ),
    "an option given twice": "./asr.sh --nbpe 5 --lang en --nbpe 7 --lang de\n",
    "an option given twice, with dashes": "./asr.sh --max-wav-duration 5 --max_wav_duration 7\n",
    "an empty value": './asr.sh --lang "" --bpe_nlsyms \'\' --nbpe ""5""\n',
    "an empty variable that is not quoted": 'x=\n./asr.sh ${x} --lang en $x "--nbpe" 5\n',
    "quotes within quotes": (
        "./asr.sh --asr_args \"--init_param 'a b.pth' --x \\\"q\\\"\" --b 'it'\\''s' --c \"it's\" "
        "--d 'a\"b' --e a\\ b\n"
    ),
    "a dollar that is quoted": "./asr.sh --a '$x' --b \"\\$x\" --c a\\$b --d \"a$\" --e $'a\\tb'\n",
    "several options on a line": "./asr.sh --a 1 --b 2 \\\n--c 3 --d 4\n",
    "a call with its output redirected": (
        "./asr.sh --lang en --nbpe 5 > log 2>&1\n"
    ),
    "a call in a pipe": "./asr.sh --lang en --nbpe 5 2>&1 | tee log\n",
    "a call in the background": "./asr.sh --lang en &\nwait\n",
    "a call with an environment": "FOO=1 BAR=\"x y\" ./asr.sh --lang en\n",
    "a call by bash": "bash ./asr.sh --lang en\nexit 0\n./asr.sh --lang no\n",
    "a call in a subshell": '(\n  lang=fr\n  ./asr.sh --lang "$lang"\n)\n',
    "a call that is not reached": "lang=en\n./asr.sh --lang $lang\nexit\n./asr.sh --lang x\n",
    "a function with arguments": (
        'run() {\n  local set=$1; shift\n  ./asr.sh --train_set "$set" "$@"\n}\n'
        'run tr_a --lang "e n" --nbpe 5\n'
    ),
    "a function that sets a variable": (
        'choose() { if [ "$1" = bpe ]; then nbpe=500; fi; }\nnbpe=30\nchoose bpe\n'
        "./asr.sh --nbpe ${nbpe}\n"
    ),
    "a local variable that hides another": (
        'lang=en\nf() {\n  local lang=de\n  nbpe=7\n}\nf\n./asr.sh --lang $lang --nbpe $nbpe\n'
    ),
    "a variable of a subshell is lost": "l=en\n(l=de)\n./asr.sh --lang $l\n",
    "a variable that is set in a pipe is lost": "l=en\n: | l=de\n./asr.sh --lang $l\n",
    "a test of a variable that may be unset": (
        'if [ -z "${ngpu:-}" ]; then ngpu=4; fi\nif [ "${mode:-}" == x ]; then ngpu=0; fi\n'
        "./asr.sh --ngpu $ngpu\n"
    ),
    "tests with and, or, not": (
        'a=1 b=2\nif [[ $a -eq 1 && ! $b == 3 ]]; then x=1; else x=2; fi\n'
        'if [ $a = 2 ] || { [ $b = 2 ] && [ $a != 3 ]; }; then y=1; else y=2; fi\n'
        "if ! [ $a = 1 ]; then z=1; else z=2; fi\n./asr.sh --x $x --y $y --z $z\n"
    ),
    "a test by pattern and by regular expression": (
        'l=en_US\nif [[ $l == en* ]]; then x=1; else x=2; fi\n'
        'if [[ "$l" == "en*" ]]; then y=1; else y=2; fi\n./asr.sh --x $x --y $y\n'
    ),
    "a short circuit": (
        'g=2\n[ $g -gt 1 ] && n=8 || n=4\n[ $g = 3 ] || m=1\n./asr.sh --n $n --m $m\n'
    ),
    "a case with several patterns": (
        'l=zh\ncase $l in\n  en|de) t=bpe;;\n  zh*|ja) t=char\n  ;;\n  *) t=word\nesac\n'
        "./asr.sh --token_type $t\n"
    ),
    "braces that are quoted": './asr.sh --a "{a,b}" --b {x} --c "x"{} --d ${a:-"{1,2}"}\n',
    "a tilde that is quoted": "./asr.sh --a '~/x' --b a~b\n",
    "continued within quotes": './asr.sh --test_sets "a \\\n    b \\\n    c" --lang en\n',
    "words glued by a backslash": "./asr.sh --la\\\nng en --nb\\\npe 5\n",
    "a backslash and the end of the file": "./asr.sh --lang en \\\n",
    "semicolons": "a=1; b=2;./asr.sh --a $a --b $b;echo done\n",
    "names that only seem to end": "s=dev\ns_x=o\n./asr.sh --a $s_x --b ${s}_x --c $s-x --d $s/x\n",
    "an export and a declaration": (
        'export a=1 b\ndeclare -r c="x y"\nreadonly d=$a\n./asr.sh --a $a --c "$c" --d $d\n'
    ),
    "a variable that names another": 'a=b\nb=5\n./asr.sh --a ${!a}\n',
    "a default with quotes": "./asr.sh --a ${x:-'p q'} --b \"${x:-'p q'}\" --c ${x:-\"p q\"}\n",
    "other values where set": 'x=1\n./asr.sh --a ${x:+yes} --b "${y:+no}" --c ${x+"p q"}\n',
    "a colon command and true": ': "${x:=7}"\ntrue && x=8\nfalse || y=9\n./asr.sh --x $x --y $y\n',
    "arguments set by hand": 'set -- --lang en "a b"\n./asr.sh "$@" --n $#\n',
    "a loop by break and continue": (
        "for x in a b c d; do [ $x = b ] && continue; l=$x; [ $x = c ] && break; done\n"
        "./asr.sh --l $l\n"
    ),
    "a loop in a loop": (
        's=""\nfor a in x y; do for b in 1 2; do s+="${s:+ }$a$b"; done; done\n'
        './asr.sh --test_sets "$s"\n'
    ),
    "a call in a loop": 'for l in en; do\n  ./asr.sh --lang $l --nbpe 5\ndone\n',
    "whole options chosen": (
        'lm=false\nif $lm; then opts="--use_lm true --lm_config conf/lm.yaml"; else '
        'opts="--use_lm false"; fi\n./asr.sh ${opts} --lang en\n'
    ),
    "numbers that are computed": "n=4\n./asr.sh --nj $((n * 2)) --ngpu $(( n / 2 ))\n",
    "a text with a newline": "./asr.sh --test_sets 'a\nb' --lang $'e'n\n",
    "the name of a file": "./asr.sh --a $(basename conf/x.yaml .yaml) --b `echo x_y | tr _ -`\n",
    "a name of units": (
        'f=wavlm_large/21\nu=$(echo "${f}_km20" | tr "/" "_")\n./asr.sh --a ${u} '
        '--b "$(echo "a  b" | tr a-z A-Z)" --c $(echo a/b/a | sed -e "s/a/x/") '
        "--d $(dirname a//b/) --e $(basename /x/y/) --f $(dirname x) --g $(echo a b | tr -d ' ')\n"
    ),
}  # fmt: skip

NOT_KNOWN = {
    "braces": "./asr.sh --lang en --test_sets test_{clean,other}\n",
    "a pattern of files": "./asr.sh --lang en --a conf/*.yaml\n",
    "a pattern of files in a variable": "f=conf/*.yaml\n./asr.sh --lang en --a $f --b x\n",
    "a home folder": "./asr.sh --a ~/x --lang en\n",
    "another IFS": 'IFS=,\ns=a,b\n./asr.sh --a $s --lang en\nl="a b"\n./asr.sh --c $l\n',
    "a loop with another IFS": (
        'IFS=,\nl="a,b"\nfor x in $l; do t="$x"; done\n./asr.sh --t "$t" --lang en\n'
    ),
    "an element that is set": 'a=(x y)\na[1]=z\n./asr.sh --a "${a[1]}" --lang en\n',
    "eval": "x=1\neval x=2\n./asr.sh --x $x --lang en\n",
    "eval of a name": 'x=1\nn=x\neval "$n=2"\n./asr.sh --x $x --lang en\n',
    "read of a here-string": 'read -r a b <<< "p q"\n./asr.sh --a $a --lang en\n',
    "a character by its number": "./asr.sh --a $'\\x41' --lang en\n",
    "a default that may be set": "if [ -e run.sh ]; then : ${n:=5}; fi\n./asr.sh --n ${n:-3} --l e",
    "calls in a condition that only the shell decides": (
        "if [ -e nothing ]; then\n  ./asr.sh --lang en --use_lm false\nelse\n"
        "  ./asr.sh --lang en\nfi\n"
    ),
    "arguments set where a file is": (
        'if [ -e run.sh ]; then set -- --lang en; fi\n./asr.sh --n 1 "$@"\n'
    ),
    "a while loop": 'while read -r l; do s="$l"; done < data/tr/text\n./asr.sh --s "$s" --l e\n',
    "counted": "i=0\nfor ((k = 0; k < 3; k++)); do i=$k; done\n./asr.sh --i $i --l e\n",
    "the lines of a file": "./asr.sh --n $(wc -l < data/tr/text) --l e\n",
    "a name that is found": "d=$(cd conf && pwd)\n./asr.sh --d $d --l e\n",
    "a pattern replaced": "s=aXbXc\n./asr.sh --s ${s/X*/y} --l e\n",
    "an array without one": "a=(x y z)\nunset 'a[1]'\n./asr.sh --a \"${a[*]}\" --l e\n",
    "a function that is defined where a file is": (
        "f() { n=1; }\nif [ -e run.sh ]; then f() { n=2; }; fi\nf\n./asr.sh --n $n --l e\n"
    ),
    "a test by regular expression": (
        "n=1\nif [[ en_US =~ ^en ]]; then n=2; fi\n./asr.sh --n $n --l e\n"
    ),
}  # fmt: skip


def written(folder: Path, script: str) -> Path:
    """Write a recipe whose run.sh is this one."""
    for name, text in {**FILES, "run.sh": HEAD + script}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    return folder


def passed_by_bash(folder: Path) -> dict[str, str]:
    """Run run.sh, and return the options of its first call, of which the last counts."""
    subprocess.run(
        ["bash", "./run.sh"], cwd=folder, check=False, capture_output=True, timeout=60,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C"},
    )  # fmt: skip
    words = (folder / "passed").read_text().split("\0")
    words = words[: words.index("<end>")]
    options, index = {}, 0
    while index < len(words):
        if words[index].startswith("--"):
            name = words[index][2:].replace("-", "_")
            options[name] = " ".join(words[index + 1].split()) if index + 1 < len(words) else ""
            index += 1
        index += 1
    return options


def read(recipe: SourceRecipe) -> dict[str, str]:
    return {name: option.value for name, option in recipe.options.items()}


@pytest.mark.parametrize("habit", FOLLOWED)
def test_options_are_those_that_bash_passes(habit, tmp_path):
    folder = written(tmp_path / "it's a recipe", FOLLOWED[habit])
    assert read(read_recipe(folder)) == passed_by_bash(folder)


@pytest.mark.parametrize("habit", NOT_KNOWN)
def test_what_is_not_known_is_listed_and_never_wrong(habit, tmp_path):
    folder = written(tmp_path / "it's a recipe", NOT_KNOWN[habit])
    recipe = read_recipe(folder)
    passed, found = passed_by_bash(folder), read(recipe)
    listed = " ".join(entry.name for entry in recipe.journal.left_behind)
    wrong = {name for name in passed.keys() | found if passed.get(name) != found.get(name)}
    assert recipe.journal.left_behind
    assert not {name for name in wrong & found.keys() if "./asr.sh" not in listed}
    assert all(f"--{name}" in listed or "$@" in listed or "./asr.sh" in listed for name in wrong)


@pytest.mark.parametrize("number", few(range(N_RECIPES), 10))
def test_the_run_sh_of_the_census_is_read_as_bash_runs_it(number, tmp_path):
    settings = make_settings(number)
    speller = Speller(settings)
    folder = written(tmp_path / "it's a recipe", "")
    counted = {f"data/{name}.txt": "x\n" for name in settings.options}
    for name, text in {"run.sh": speller.script(), **speller.files, **counted}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    recipe = read_recipe(folder)
    passed, found = passed_by_bash(folder), read(recipe)
    listed = {entry.name for entry in recipe.journal.left_behind}
    assert found == {name: passed[name] for name in passed if f"--{name}" not in listed}
