"""Find the files and folders that a config names.

A value names what is there under it: relative to the current folder, as `open` would take it, or to
the `recipe_dir` that stands in the config, as our data sources do; `~`, `$VARIABLES` and `file://`
are understood. If the whole value is no path, its parts may be: of `--lm exp/lm.arpa`, of
`a.pt,b.pt`, of `data/*.tar`, and a key of a dict such as `exp/a.pt`. A name on the Hugging Face Hub
stands for what the hub's cache on this machine has of it. Weights of a training bring the
`config.yaml` that lies beside them, and what the `model` in it names.

Not seen are paths that code builds from parts, those in texts of more than 4,096 characters, and
those in keys without a slash.
"""

import errno
import glob
import itertools
import logging
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from espnet3.config.content import WEIGHTS

logger = logging.getLogger(__name__)

PLACES = frozenset({"data_dir", "dataset_dir", "exp_dir", "stats_dir", "inference_dir", "exp_tag"})
"""Keys that at the top of a recipe's config say where things are, and whose folders change by
running it; as an argument of a model or dataset they count."""

WRITTEN = frozenset(
    {"recipe_dir", "output_dir", "output_path", "output_file", "out_dir", "save_dir", "dump_dir"}
    | {"log_dir", "log_directory", "log_file", "log_path", "work_dir", "cache_dir"}
    | {"tmp_dir", "temp_dir"}
)
"""Keys that do so everywhere."""

_LONGEST, _MOST_MATCHES = 4096, 1000
_NOT_A_PATH = {errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL}
_BETWEEN = re.compile(r"""[\s,;:=|"'(){}]+""")
_HAS_SUFFIX = re.compile(r"[^/]\.\w{1,11}$")
_ONLY_DOTS = re.compile(r"[./~\s]*")
_SYSTEM = ("/proc", "/sys", "/dev")
_HUB_NAME = re.compile(r"[\w.-]{1,96}(/[\w.-]{1,96})?")


@dataclass(frozen=True)
class NamedPath:
    """A path, and which value it stands in."""

    key: str
    """Its own: that of the value, with a number if it is a part of it."""
    setting: str
    """The key of the value."""
    path: str
    """Where it is."""
    text: str
    """How the value spells it."""
    commit: str = ""
    """Of a name on the hub: which version the cache has."""

    @property
    def is_whole(self) -> bool:
        """Whether the value is a path, and no more."""
        return self.key == self.setting and not self.commit


def named_paths(flat: Mapping[str, Any]) -> Iterator[NamedPath]:
    """Yield what flat values name that exists, by key; see the module for what is looked for."""
    finder = _Finder([str(v) for k, v in flat.items() if _last(k) == "recipe_dir" and v])
    for key, value in flat.items():
        for i, (path, text) in enumerate(finder.in_key(key), start=1):
            yield NamedPath(f"{key}#key{i}", key, path, text)
        if not isinstance(value, str | os.PathLike) or _is_place(key, flat):
            continue
        text = os.fspath(value)
        if not isinstance(text, str) or _ONLY_DOTS.fullmatch(text):
            continue
        if path := finder.find(text):
            yield NamedPath(key, key, path, text)
            for i, beside in enumerate(finder.beside(path), start=1):
                yield NamedPath(f"{key}#beside{i}", key, beside, beside)
        elif snapshot := _hub_snapshot(text, _revision(key, flat)):
            yield NamedPath(key, key, str(snapshot), text, snapshot.name)
        else:
            for i, (path, part) in enumerate(finder.in_text(text), start=1):
                yield NamedPath(f"{key}#{i}", key, path, part)


def setting_of(key: str) -> str:
    """Return the key of the value that a path with this key stands in."""
    return re.sub(r"#(key|beside)?\d+$", "", key)


def _last(key: str) -> str:
    return key.rpartition(".")[2]


def _is_place(key: str, flat: Mapping[str, Any]) -> bool:
    block, _, last = key.rpartition(".")
    if last in WRITTEN:
        return True
    recipe_dir = f"{block}.recipe_dir" if block else "recipe_dir"
    return last in PLACES and block in ("", "config") and recipe_dir in flat


def _revision(key: str, flat: Mapping[str, Any]) -> str:
    block = key.rpartition(".")[0]
    revision = flat.get(f"{block}.revision" if block else "revision")
    return revision if isinstance(revision, str) and revision else "main"


class _Finder:
    """Looks for paths in text."""

    def __init__(self, folders: Sequence[str]) -> None:
        """Take the folders that relative paths may count from, beside the current one."""
        self._folders = ["", *dict.fromkeys(folders)]

    def find(self, text: str) -> str:
        """Return the path that a text is as a whole, empty if none.

        One that may be there, but cannot be looked at, is returned: reading it will say why.
        """
        return self._first(text, unclear=True)

    def in_text(self, text: str) -> Iterator[tuple[str, str]]:
        """Yield the paths that are parts of a text, and how it spells them."""
        if len(text) > _LONGEST:
            return
        if glob.has_magic(text) and _may_be_path(text):
            yield from self._matches(text)
        for part in dict.fromkeys(_BETWEEN.split(text)):
            if part == text or not _may_be_path(part) or not (path := self._first(part)):
                continue
            # Of a bare word only a file is meant, and not a folder that has that name too.
            if "/" in part or os.path.isfile(path):
                yield path, part

    def beside(self, path: str) -> Iterator[str]:
        """Yield what weights of a training go with: the config beside them, and what it names."""
        config = os.path.join(os.path.dirname(path), "config.yaml")
        if not path.endswith(WEIGHTS) or not os.path.isfile(config):
            return
        yield config
        # The lines that `train` writes; to load YAML would take longer than all the rest.
        lines = Path(config).read_text(encoding="utf-8", errors="replace").splitlines()
        for line in itertools.takewhile(_is_inside, itertools.dropwhile(_is_before_model, lines)):
            value = re.sub(r"^.*?(: |- )", "", line.strip()).strip("'\"")
            if "/" in value and (found := self._first(value)):
                yield found

    def in_key(self, key: str) -> Iterator[tuple[str, str]]:
        """Yield the path that the last part of a key is; that part may have dots in it."""
        if "/" not in key or len(key) > _LONGEST:
            return
        for match in re.finditer(r"\.", key):
            part = key[match.end() :]
            if "/" in part and not _ONLY_DOTS.fullmatch(part) and (path := self._first(part)):
                yield path, part
                return

    def _first(self, text: str, *, unclear: bool = False) -> str:
        if len(text) > _LONGEST or text.startswith(_SYSTEM):
            return ""
        for spelled in _spellings(text):
            for folder in self._folders:
                path = os.path.join(folder, spelled)
                if _exists(path, unclear=unclear and spelled == text and "/" in text):
                    return path
        return ""

    def _matches(self, pattern: str) -> Iterator[tuple[str, str]]:
        if "**" in pattern:
            return
        paths = (os.path.join(folder, pattern) for folder in self._folders)
        found = itertools.chain.from_iterable(glob.iglob(path) for path in paths)
        listed = sorted(itertools.islice(found, _MOST_MATCHES + 1))
        if len(listed) > _MOST_MATCHES:
            logger.warning(
                "%s matches more than %d files: only their names are compared",
                pattern, _MOST_MATCHES,
            )  # fmt: skip
            return
        yield from ((path, path) for path in listed)


def _is_before_model(line: str) -> bool:
    return line.rstrip() != "model:"


def _is_inside(line: str) -> bool:
    return line.startswith((" ", "-")) or not _is_before_model(line)


def _may_be_path(text: str) -> bool:
    return not _ONLY_DOTS.fullmatch(text) and ("/" in text or bool(_HAS_SUFFIX.search(text)))


def _spellings(text: str) -> Iterator[str]:
    yield text
    if text.startswith("~") or "$" in text:
        expanded = os.path.expandvars(os.path.expanduser(text))
        if expanded != text and not _ONLY_DOTS.fullmatch(expanded):
            yield expanded
    if text.startswith("file:"):
        yield unquote(urlsplit(text).path) or text


def _exists(path: str, *, unclear: bool) -> bool:
    try:
        os.stat(path)
    except ValueError:  # a null byte
        return False
    except OSError as error:
        return unclear and error.errno not in _NOT_A_PATH
    return True


def _hub_snapshot(text: str, revision: str) -> Path | None:
    """Return the folder that the hub's cache has of a name, if it says which version is used."""
    if not _HUB_NAME.fullmatch(text) or "--" in text:
        return None
    for kind in ("models", "datasets"):
        folder = _hub_cache() / f"{kind}--{text.replace('/', '--')}"
        try:
            commit = (folder / "refs" / revision).read_text().strip()
        except (OSError, ValueError):
            commit = revision
        snapshot = folder / "snapshots" / commit
        if commit and _is_folder(snapshot):
            return snapshot
    return None


def _is_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def _hub_cache() -> Path:
    """Return where `huggingface_hub` keeps what it downloads, without importing it."""
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or os.path.join(caches, "huggingface")
    given = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    return Path(os.path.expandvars(os.path.expanduser(given or os.path.join(home, "hub"))))
