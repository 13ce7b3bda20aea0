"""Of 23 changes of code and constants of a runner's own module, 16 were not noticed."""

import ast
import functools
import importlib
import logging
import os
import subprocess
import sys
import types

import pytest

from espnet3.config.fingerprint import files_in
from espnet3.parallel.identity import changes, describe_run, modules_named
from espnet3.parallel.module_source import read_module
from espnet3.parallel.own_modules import note_changes_of_run
from espnet3.shards.manifest import Manifest
from tests.helpers.exhaustive import few

HEAD = """
from espnet3.parallel import BaseRunner, set_parallel


class Provider:
    def build_env_local(self):
        return {}

    def build_worker_setup_fn(self):
        return dict


"""
TAIL = """

set_parallel({"env": "local", "n_workers": 1})
if __name__ == "__main__":
    result = "driving"
    print("of", result)
"""


def forward(body):
    return (
        f"class R(BaseRunner):\n    @staticmethod\n    def forward(idx):\n        return {body}\n"
    )


# Thousands that no test has to look at.
LIBRARIES = frozenset(sys.modules)

# What is changed, and the key that is to be named.
CHANGES = {
    "regex": ("import re\nP = re.compile('a+', re.I)\n" + forward("P"), "'a+'", "'b+'", "P"),
    "regex_flags": ("import re\nP = re.compile('a+', re.I)\n" + forward("P"), "re.I", "re.M", "P"),
    "array": (
        "import numpy as np\nA = np.array([1.0, 2.0])\n" + forward("A[idx]"), "2.0", "3.0", "A"
    ),
    "array_type": (
        "import numpy as np\nA = np.zeros(3, dtype='f4')\n" + forward("A"), "f4", "f8", "A"
    ),
    "path": ("from pathlib import Path\nD = Path('data/a')\n" + forward("D"), "data/a", "b", "D"),
    "dataclass": (
        "from dataclasses import dataclass\n@dataclass\nclass C:\n    beam: int\n    n: int = 2\n"
        "S = C(4)\n" + forward("S.beam"), "C(4)", "C(8)", "S",
    ),
    "dataclass_default": (
        "from dataclasses import dataclass\n@dataclass\nclass C:\n    beam: int\n    n: int = 2\n"
        "S = C(4)\n" + forward("S.n"), "n: int = 2", "n: int = 3", "C.n",
    ),
    "namespace": (
        "from types import SimpleNamespace\nS = SimpleNamespace(beam=4)\n" + forward("S.beam"),
        "beam=4", "beam=8", "S",
    ),
    "complex": ("Z = 1 + 2j\n" + forward("Z * idx"), "2j", "3j", "Z"),
    "partial": (
        "from functools import partial\ndef scale(x, by):\n    return x * by\n"
        "double = partial(scale, by=2)\n" + forward("double(idx)"), "by=2", "by=3", "double",
    ),
    "partial_function": (
        "from functools import partial\ndef scale(x, by):\n    return x * by\n"
        "double = partial(scale, by=2)\n" + forward("double(idx)"), "x * by", "x + by", "scale",
    ),
    "instance": (
        "class Own:\n    def __init__(self, v):\n        self.v = v\nOWN = Own(3)\n"
        + forward("OWN.v"), "Own(3)", "Own(4)", "OWN",
    ),
    "instance_method": (
        "class Own:\n    def __call__(self, x):\n        return x + 1\nOWN = Own()\n"
        + forward("OWN(idx)"), "x + 1", "x + 2", "Own.__call__",
    ),
    "cached_helper": (
        "import functools\n@functools.lru_cache(maxsize=None)\ndef helper(x):\n    return x + 1\n"
        + forward("helper(idx)"), "x + 1", "x + 2", "helper",
    ),
    "wrapped_helper": (
        "def shout(f):\n    def inner(x):\n        return f(x) + 1\n    return inner\n"
        "@shout\ndef helper(x):\n    return x * 3\n" + forward("helper(idx)"),
        "x * 3", "x * 4", "helper",
    ),
    "decorator_of_a_helper": (
        "def shout(f):\n    def inner(x):\n        return f(x) + 1\n    return inner\n"
        "@shout\ndef helper(x):\n    return x * 3\n" + forward("helper(idx)"),
        "f(x) + 1", "f(x) + 2", "shout",
    ),
    "decorator_of_forward": (
        "import functools\ndef twice(f):\n    @functools.wraps(f)\n    def inner(idx):\n"
        "        return f(idx) * 2\n    return inner\nclass R(BaseRunner):\n    @staticmethod\n"
        "    @twice\n    def forward(idx):\n        return idx\n", "* 2", "* 3", "twice",
    ),
    "argument_of_a_decorator": (
        "N = 2\ndef times(n):\n    def deco(f):\n        def inner(idx):\n"
        "            return f(idx) * n\n        return inner\n    return deco\n"
        "class R(BaseRunner):\n    @staticmethod\n    @times(N)\n    def forward(idx):\n"
        "        return idx\n", "N = 2", "N = 3", "N",
    ),
    "default_argument": (
        "BEAM = 4\nclass R(BaseRunner):\n    @staticmethod\n    def forward(idx, beam=BEAM):\n"
        "        return beam\n", "BEAM = 4", "BEAM = 8", "BEAM",
    ),
    "class_attribute": (
        "BEAM = 4\nclass R(BaseRunner):\n    beam = BEAM\n    @staticmethod\n"
        "    def forward(idx):\n        return R.beam\n", "BEAM = 4", "BEAM = 8", "BEAM",
    ),
    "cached_property": (
        "import functools\nclass Own:\n    @functools.cached_property\n    def v(self):\n"
        "        return 5\nOWN = Own()\n" + forward("OWN.v"), "return 5", "return 6", "Own.v",
    ),
    "property": (
        "class Own:\n    @property\n    def v(self):\n        return 5\nOWN = Own()\n"
        + forward("OWN.v"), "return 5", "return 6", "Own.v",
    ),
    "long_dict": (
        "T = {i: i for i in range(5000)}\nT[4999] = 1\n" + forward("T[idx]"), "= 1\n", "= 2\n", "T"
    ),
    "long_list": ("T = list(range(3000)) + [1]\n" + forward("T[idx]"), "[1]", "[2]", "T"),
    "base_class": (
        "class Base(BaseRunner):\n    @staticmethod\n    def forward(idx):\n        return idx\n"
        "class R(Base):\n    pass\n", "return idx", "return -idx", "Base.forward",
    ),
    "metaclass": (
        "class Meta(type):\n    def __new__(cls, name, bases, space):\n        space['g'] = 2\n"
        "        return super().__new__(cls, name, bases, space)\n"
        "class Own(metaclass=Meta):\n    pass\n" + forward("Own.g"), "= 2", "= 3", "Meta.__new__",
    ),
    "init_subclass": (
        "class Base:\n    def __init_subclass__(cls):\n        cls.g = 2\nclass Own(Base):\n"
        "    pass\n" + forward("Own.g"), "= 2", "= 3", "Base.__init_subclass__",
    ),
    "patch": (
        "class Own:\n    def run(self, x):\n        return x\ndef patched(self, x):\n"
        "    return x + 1\nOwn.run = patched\n" + forward("Own().run(idx)"),
        "x + 1", "x + 2", "patched",
    ),
    "setattr": (
        "class Own:\n    g = 1\nsetattr(Own, 'g', 5)\n" + forward("Own.g"), "5)", "6)", "Own.g"
    ),
    "loop": (
        "T = {}\nfor i in range(10):\n    T[i] = i * 2\n" + forward("T[idx]"), "* 2", "* 3", "T"
    ),
    "filled_by_a_function": (
        "T = {}\ndef fill(n):\n    for i in range(n):\n        T[i] = i\nfill(5)\n"
        + forward("T.get(idx)"), "fill(5)", "fill(6)", "T",
    ),
    "registry": (
        "T = {}\ndef register(name):\n    def deco(f):\n        T[name] = f\n        return f\n"
        "    return deco\n@register('a')\ndef a(x):\n    return x + 1\n"
        + forward("T['a'](idx)"), "x + 1", "x + 2", "a",
    ),
    "under_if": (
        "import sys\nif sys.version_info > (3,):\n    G = 3\nelse:\n    G = 4\n" + forward("G"),
        "G = 3", "G = 5", "G",
    ),
    "under_try": (
        "try:\n    import no_such_module_at_all\nexcept ImportError:\n    G = 3\n" + forward("G"),
        "G = 3", "G = 5", "G",
    ),
    "lambda_in_a_dict": (
        "F = {'a': [lambda x: x + 1]}\n" + forward("F['a'][0](idx)"), "x + 1", "x + 2", "F"
    ),
    "closure": (
        "def make(beam):\n    class R(BaseRunner):\n        @staticmethod\n"
        "        def forward(idx):\n            return beam\n    return R\nR = make(4)\n",
        "make(4)", "make(5)", "",
    ),
    "generator": (
        "def gen():\n    yield 1\n    yield from (x for x in [3, 4])\n" + forward("list(gen())"),
        "[3, 4]", "[3, 5]", "gen",
    ),
    "enum": (
        "import enum\nclass E(enum.Enum):\n    A = 1\n" + forward("E.A.value"),
        "A = 1", "A = 2", "E",
    ),
    "named_tuple": (
        "from typing import NamedTuple\nclass N(NamedTuple):\n    a: int\nV = N(1)\n"
        + forward("V.a"), "N(1)", "N(2)", "V",
    ),
    "set": ("S = {'a', 'b'}\n" + forward("idx in S"), "'b'", "'c'", "S"),
    "bytes": ("B = b'ab'\n" + forward("B"), "b'ab'", "b'ac'", "B"),
    "type_of_a_number": ("N = 1\n" + forward("N / 2"), "N = 1", "N = 1.0", "N"),
    "to_zero": ("N = 1\n" + forward("N"), "N = 1", "N = 0", "N"),
    "annotated": ("N: int = 1\n" + forward("N"), "= 1", "= 2", "N"),
    "unpacked": ("A, B = 1, 2\n" + forward("B"), "1, 2", "1, 3", ""),
    "walrus": ("print(len(T := [1, 2]))\n" + forward("T"), "1, 2", "1, 3", "T"),
    "augmented": ("T = [1]\nT += [2]\n" + forward("T"), "[2]", "[3]", "T"),
    "slots": (
        "class S:\n    __slots__ = ('v',)\n    def __init__(self, v):\n        self.v = v\n"
        "V = S(1)\n" + forward("V.v"), "S(1)", "S(2)", "V",
    ),
    "looked_up": ("BEAM = 4\n" + forward("globals()['BEAM']"), "BEAM = 4", "BEAM = 5", "BEAM"),
    "nested_function": (
        "class R(BaseRunner):\n    @staticmethod\n    def forward(idx):\n        def inner(x):\n"
        "            return x + 1\n        return inner(idx)\n", "x + 1", "x + 2", "R.forward",
    ),
    "dispatch": (
        "import functools\n@functools.singledispatch\ndef f(x):\n    return 0\n@f.register\n"
        "def of_int(x: int):\n    return x + 1\n" + forward("f(idx)"), "x + 1", "x + 2", "of_int",
    ),
    "set_by_lookup": ("globals()['G'] = 1\n" + forward("G"), "= 1", "= 2", ""),
    "attribute_of_a_function": (
        "def f(x):\n    return f.k\nf.k = 3\n" + forward("f(idx)"), "= 3", "= 4", "f",
    ),
    "tensor": ("import torch\nW = torch.ones(4) * 2\n" + forward("W"), "* 2", "* 3", "W"),
    "large_array": (
        "import numpy as np\nA = np.zeros(2**20)\nA[1234] = 1\n" + forward("A"), "1234", "1235", "A"
    ),
    "order": (
        "T = [3, 1]\nFIRST = T[0]\nT.sort()\n" + forward("FIRST"),
        "FIRST = T[0]\nT.sort()", "T.sort()\nFIRST = T[0]", "",
    ),
}  # fmt: skip


class Place:
    """Where a runner is defined: its text is written, loaded anew and described."""

    def __init__(self, folder, monkeypatch, kind):
        self.folder, self.kind = folder, kind
        self._monkeypatch = monkeypatch
        monkeypatch.syspath_prepend(folder)
        monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def load(self, text, **others):
        for name, other in others.items():
            path = self.folder.joinpath(*name.split("_of_")[::-1]).with_suffix(".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(other)
        forget_modules_in(self.folder)
        importlib.invalidate_caches()
        return getattr(self, f"_load_{self.kind}")(HEAD + text + TAIL)

    def _load_module(self, text):
        (self.folder / "own_runner.py").write_text(text)
        return importlib.import_module("own_runner")

    def _load_script(self, text):
        path = self.folder / "own_script.py"
        path.write_text(text)
        module = types.ModuleType("__main__")
        module.__file__ = str(path)
        self._monkeypatch.setitem(sys.modules, "__main__", module)
        exec(compile(text, str(path), "exec"), vars(module))
        return module

    def _load_prompt(self, text):
        module = types.ModuleType("__main__")
        self._monkeypatch.setitem(sys.modules, "__main__", module)
        exec(text, vars(module))
        return module

    def describe(self, text, **others):
        module = self.load(text, **others)
        return describe_run(module.R(module.Provider()), range(3))


@pytest.fixture(params=["script", "module"])
def place(request, awkward, monkeypatch):
    return Place(awkward, monkeypatch, request.param)


@pytest.fixture
def awkward(tmp_path):
    folder = tmp_path / "it's a folder"
    folder.mkdir()
    yield folder
    forget_modules_in(folder)


def forget_modules_in(folder):
    for name in sys.modules.keys() - LIBRARIES:
        module = sys.modules[name]
        known = vars(module) if type(module) is types.ModuleType else {}
        # A namespace package has no file, and would be in the way of the next one of its name.
        places = [known.get("__file__") or "", *(known.get("__path__") or ())]
        if any(str(place).startswith(str(folder)) for place in places):
            del sys.modules[name]


def differences(before, after):
    manifest = Manifest({}, 3, [0, 3], [3.0], None, dict(before), files_in(before), "run")
    return changes(manifest, after)


def reformatted(text):
    """Return the same code with comments, docstrings and another layout."""
    body = ast.unparse(ast.parse(text)).replace("\n", "\n\n# why\n", 1)
    return f'"""Doc."""\n\n{body}\n\n\n# the end\n"""And more."""\n'


@pytest.mark.parametrize(
    ("place", "change"),
    [*(("module", name) for name in CHANGES), *few([("script", name) for name in CHANGES], 12)],
    indirect=["place"],
)
def test_a_change_is_noticed_and_named(place, change):
    text, old, new, key = CHANGES[change]
    assert text.count(old) == 1
    before = place.describe(text)
    assert differences(before, place.describe(reformatted(text))) == []
    lines = differences(before, place.describe(text.replace(old, new)))
    assert lines
    keys = [line.partition(":")[0] for line in lines]
    assert any(each.startswith(f"runner.code.{key}".rstrip(".")) for each in keys), lines


@pytest.mark.parametrize("change", few(CHANGES, 12))
def test_a_change_at_a_prompt_is_noticed(awkward, monkeypatch, change):
    text, old, new, _ = CHANGES[change]
    place = Place(awkward, monkeypatch, "prompt")
    before = place.describe(text)
    assert differences(before, place.describe(text)) == []
    assert differences(before, place.describe(text.replace(old, new)))


DRIVING = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--n_workers", type=int, default=4)
args = parser.parse_args([])
result = [args.n_workers]
provider = Provider()
runner = R(provider, resume=True)
set_parallel({"env": "local", "n_workers": args.n_workers})
def main(idx):
    print("unrelated", idx, R)
main(3)
"""


def test_the_lines_that_drive_a_script_do_not_count(awkward, monkeypatch):
    place = Place(awkward, monkeypatch, "script")
    runner = "class R(BaseRunner):\n    @staticmethod\n    def forward(idx):\n" + (
        "        result = idx\n        return result, [runner for runner in [1]]\n"
    )
    before = place.describe(runner + DRIVING)
    edited = DRIVING.replace("default=4", "default=2").replace("unrelated", "other")
    edited = edited.replace("resume=True", "accept_changes=['x']").replace("main(3)", "main(4)")
    assert differences(before, place.describe(runner + edited)) == []
    assert differences(before, place.describe(runner)) == []


@pytest.mark.parametrize("import_", ["import far", "from pack.near import far", "import pack.near"])
@pytest.mark.parametrize("inside", [True, False])
def test_helpers_in_other_modules_count_however_deep(place, import_, inside):
    use = "far.f(idx)" if "far" in import_ else "pack.near.far.f(idx)"
    if inside:
        text = "class R(BaseRunner):\n    @staticmethod\n    def forward(idx):\n"
        text += f"        {import_}\n        return {use}\n"
    else:
        text = f"{import_}\n{forward(use)}"
    others = {
        "far": "def f(x):\n    from pack import deep\n    return deep.g(x)\n",
        "near_of_pack": "import far\n",
        "deep_of_pack": "from .deeper import *\n\n\ndef g(x):\n    return h(x)\n",
        "deeper_of_pack": "def h(x):\n    return x + 1\n",
        "__init___of_pack": "SEED = 1\n",
    }
    before = place.describe(text, **others)
    assert differences(before, place.describe(text, **others)) == []
    deeper = {**others, "deeper_of_pack": "def h(x):\n    return x + 2\n"}
    assert differences(before, place.describe(text, **deeper)) == [
        "runner.code.pack.deeper.h: the code changed"
    ]
    package = {**others, "__init___of_pack": "SEED = 2\n"}
    assert differences(before, place.describe(text, **package)) == ["runner.code.pack.SEED: 1 -> 2"]


@pytest.mark.parametrize(
    "text",
    [
        "import importlib\nM = importlib.import_module('far')\n" + forward("M.f(idx)"),
        "CONFIG = {'_target_': 'pack.far.f'}\n" + forward("CONFIG"),
        "try:\n    from pack import far\nexcept ImportError:\n    far = None\n" + forward("far"),
        "from pack.far import Base\nclass R(Base, BaseRunner):\n    pass\n",
        "import runpy\nM = runpy.run_path('far.py')\n" + forward("M['f'](idx)"),
        "from importlib.util import spec_from_file_location\nNAME = 'far.py'\n"
        + forward("spec_from_file_location('far', NAME)"),
        "CONFIG = 'pack.far.Base.forward'\n" + forward("CONFIG"),
    ],
)
def test_modules_that_are_named_in_other_ways_count(place, monkeypatch, text):
    monkeypatch.chdir(place.folder)
    far = "def f(x):\n    return x + 1\nclass Base:\n    @staticmethod\n    def forward(idx):\n"
    others = {"far": far + "        return 1\n", "far_of_pack": far + "        return 1\n"}
    before = place.describe(text, **others)
    changed = {name: other.replace("return", "return -") for name, other in others.items()}
    assert differences(before, place.describe(text, **changed))


@pytest.mark.parametrize("name", ["far.py", "far.txt", "far.log", "pack.json", "pack.far.npy"])
@pytest.mark.parametrize("where", ["code", "settings"])
def test_a_file_whose_name_begins_like_a_module_is_not_that_module(place, name, where):
    """Such as the log of a program, the sitecustomize.py that a test writes."""
    others = {"far": "def f(x):\n    return 1\n"}
    others = {**others, "far_of_pack": others["far"], "__init___of_pack": "SEED = 1\n"}
    if where == "settings":
        place.load("", **others)
        assert not {"far", "pack", "pack.far"} & modules_named({"output": name})
        return
    text = f"NAME = {name!r}\n" + forward("open(NAME)")
    before = place.describe(text, **others)
    changed = {each: other.replace("1", "2") for each, other in others.items()}
    assert differences(before, place.describe(text, **changed)) == []


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("import os\nBEAM = int(os.environ['BEAM'])\n" + forward("BEAM"), "BEAM: 4 -> 8"),
        ("import os\nB = [os.environ['BEAM']]\n" + forward("B"), "B: the value changed"),
        (
            "import os\nclass R(BaseRunner):\n    beam = os.environ['BEAM']\n    @staticmethod\n"
            "    def forward(idx):\n        return R.beam\n", "R.beam: '4' -> '8'",
        ),
        (
            "import os\nclass R(BaseRunner):\n    @staticmethod\n"
            "    def forward(idx, beam=os.environ['BEAM']):\n        return beam\n",
            "R.forward.beam: '4' -> '8'",
        ),
        ("import pathlib\nT = pathlib.Path('t.txt').read_text()\n" + forward("T"), "T: '4' -> '8'"),
        (
            "import os\nclass Own:\n    def __init__(self):\n        self.v = os.environ['BEAM']\n"
            "OWN = Own()\n" + forward("OWN.v"), "OWN.value: the value changed",
        ),
        ("from far import BEAM\n" + forward("BEAM"), "far.BEAM: '4' -> '8'"),
    ],
)  # fmt: skip
def test_values_that_no_text_tells_count(place, monkeypatch, text, key):
    monkeypatch.chdir(place.folder)
    found = []
    for beam in ("4", "4", "8"):
        monkeypatch.setenv("BEAM", beam)
        (place.folder / "t.txt").write_text(beam)
        found.append(place.describe(text, far="import os\nBEAM = os.environ['BEAM']\n"))
    assert differences(found[0], found[1]) == []
    assert differences(found[0], found[2]) == [f"runner.code.{key}"]


CHANGED_BY_RUNNING = """
import functools

CACHE, CALLS, NET = {}, [], None
N = 0
FILLED = dict([("a", 1)])

def keep(where, x):
    where[x] = x

class Meter:
    def __init__(self):
        self.n = 0

    def step(self):
        self.n += 1

METER = Meter()

@functools.lru_cache
def square(x):
    return x * x

class R(BaseRunner):
    @staticmethod
    def forward(idx):
        global N, NET, SIZE
        CACHE[idx] = square(idx)
        CALLS.append(idx)
        N += 1
        NET = NET or [1, 2]
        SIZE = 5
        keep(FILLED, idx)
        METER.step()
        return idx, SIZE
"""


@pytest.mark.parametrize("kind", ["script", "module", "prompt"])
def test_what_a_run_changes_in_this_process_is_no_change(awkward, monkeypatch, kind):
    module = Place(awkward, monkeypatch, kind).load(CHANGED_BY_RUNNING)
    runner = module.R(module.Provider(), output_dir=awkward / "out")
    before = describe_run(runner, range(3))
    first = runner(range(3))
    assert module.METER.n == 3
    assert runner(range(3)) == first  # not refused
    again = module.R(module.Provider(), output_dir=awkward / "other")
    again(range(4))
    assert differences(before, describe_run(runner, range(3))) == []


def test_a_table_that_the_user_changes_between_two_calls_is_a_change(awkward, monkeypatch):
    text = "TABLE = dict(a=1)\n" + forward("TABLE['a']")
    module = Place(awkward, monkeypatch, "script").load(text)
    before = describe_run(module.R(module.Provider()), range(3))
    note_changes_of_run()
    module.TABLE["a"] = 2
    after = describe_run(module.R(module.Provider()), range(3))
    assert differences(before, after) == ["runner.code.TABLE: the value changed"]


BY_NATURE = """
import logging, os, random, threading, time, uuid
from pathlib import Path
import numpy as np

START = time.time()
ID = uuid.uuid4().hex
PID = [os.getpid()]
logger = logging.getLogger(__name__)
LOCK = threading.Lock()
RNG = random.Random()
GENERATOR = np.random.default_rng()
FOLDER = Path(__file__).parent
FILES = {"a": str(FOLDER / "a")}
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CWD = os.getcwd()
RANK = int(os.environ.get("SLURM_PROCID", 0))
S = {"a", "b", "c"}
D = {x: 1 for x in S}
O = frozenset(S)
F = object()
G = [object()]

""" + forward(
    "START, ID, PID, logger, LOCK, RNG, GENERATOR, FOLDER, FILES, ROOT, CWD, RANK, S, D, O, F, G"
)


def test_another_process_folder_or_hash_seed_is_no_change(tmp_path):
    """The description must be the same wherever and whenever it is made."""
    ask = (
        "\nfrom espnet3.parallel.identity import describe_run\nimport json\nimport by_nature\n"
        "for each in (R, by_nature.R):\n"
        "    print(json.dumps(describe_run(each(Provider()), range(3)), sort_keys=True))\n"
    )
    answers = set()
    for seed in (1, 2):
        folder = tmp_path / f"moved {seed}"
        folder.mkdir()
        (folder / "own_script.py").write_text(HEAD + BY_NATURE + ask)
        (folder / "by_nature.py").write_text(HEAD + BY_NATURE)
        elsewhere = tmp_path / f"cwd{seed}"
        elsewhere.mkdir()
        run = [sys.executable, str(folder / "own_script.py")]
        env = {**os.environ, "PYTHONHASHSEED": str(seed), "SLURM_PROCID": str(seed)}
        answers.add(subprocess.check_output(run, env=env, cwd=elsewhere, text=True))
    assert len(answers) == 1


def test_results_of_an_earlier_version_go_on_with_a_warning(awkward, monkeypatch, caplog):
    described = Place(awkward, monkeypatch, "module").describe(forward("idx"))
    old = {k: v for k, v in described.items() if "code" not in k}
    old |= {"runner.code": "0" * 16, "runner.code.BEAM": 5, "provider.code": "1" * 16}
    old |= {"code.src.model.Net": "2" * 16, "code.Dataset": "3" * 16}
    with caplog.at_level(logging.WARNING):
        assert differences(old, described) == []
    assert "code" in caplog.text
    assert differences({**old, "batch_size": 7}, described) == ["batch_size: 7 -> None"]


@pytest.mark.parametrize("accepted", ["runner.code", "runner.code.R", "runner.code.R.forward"])
def test_a_change_can_be_accepted_by_what_the_refusal_names(awkward, monkeypatch, accepted):
    place = Place(awkward, monkeypatch, "module")
    module = place.load(forward("idx"))
    out = awkward / "out"
    module.R(module.Provider(), output_dir=out)(range(3))
    (out / "results.jsonl").unlink()
    module = place.load(forward("-idx"))
    module.R(module.Provider(), output_dir=out, accept_changes=[accepted])(range(3))


def test_a_file_that_is_written_twice_within_a_tick_of_the_clock_is_read_twice(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(os, "stat", functools.partial(stat_of_a_slow_clock, os.stat))
    file = tmp_path / "own.py"
    file.write_text("N = 1\n")
    before, state = read_module(str(file)).definitions, os.stat(file)
    file.write_text("N = 2\n")
    assert os.stat(file) == state
    assert (before, read_module(str(file)).definitions) == ({"N": 1}, {"N": 2})


def stat_of_a_slow_clock(stat, *args, **options):
    """Return the state of a file as where a tick of the clock is longer than the test."""
    return os.stat_result((*stat(*args, **options)[:7], 0, 0, 0))


def test_files_of_the_same_text_differ_by_what_they_are(tmp_path):
    text = "A = 1\nif __name__ == '__main__':\n    B = 2\n"
    module, data = tmp_path / "own.py", tmp_path / "own.so"
    module.write_text(text)
    data.write_text(text)
    assert set(read_module(str(module)).definitions) == {"A"}
    assert "B" in read_module(str(module), is_script=True).definitions
    assert set(read_module(str(data)).definitions) == {""}


@pytest.mark.parametrize(
    "content",
    [
        "# coding: latin-1\nN = 'ä'\n".encode("latin-1"), "N = 'ä'\r\n".encode(),
        "\ufeffN = 'ä'\n".encode(), "# -*- coding: utf-8 -*-\rN = 'ä'\r".encode(),
    ],
)  # fmt: skip
def test_encodings_and_line_ends_are_those_of_python(tmp_path, content):
    file = tmp_path / "own.py"
    file.write_bytes(content)
    assert read_module(str(file)).definitions == {"N": "ä"}
