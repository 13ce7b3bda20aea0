"""The house in figures: files and lines per package, who imports what, and four walks through it.

`python -m benchmarks.house` prints the tables of docs/how-it-works.md; `--no-walks` leaves out what
starts processes. No figure is a limit: they are there to be seen, before and after a change.
"""

import argparse
import ast
import io
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = "espnet3"
SMALL = 80
"""Lines below which a module with one importer is usually part of that importer."""


@dataclass(frozen=True)
class Module:
    """A file of the package."""

    name: str
    """Dotted."""
    path: Path

    @cached_property
    def lines(self) -> list[str]:
        """Its lines."""
        return self.path.read_text().splitlines()

    @cached_property
    def tree(self) -> ast.Module:
        """What it says."""
        return ast.parse(self.path.read_text())

    @property
    def n_comments(self) -> int:
        """Its lines with a comment, also behind code."""
        tokens = tokenize.generate_tokens(io.StringIO(self.path.read_text()).readline)
        return sum(token.type == tokenize.COMMENT for token in tokens)

    @property
    def part(self) -> str:
        """The package right below ours that it is in; empty for modules beside them."""
        parts = self.name.split(".")
        return parts[1] if self.path.parent.name != PACKAGE else ""


class House:
    """All modules, and which of them imports which, also inside functions."""

    def __init__(self, root: Path = ROOT) -> None:
        self.modules = {m.name: m for m in _find_modules(root)}

    def imports(self, module: Module) -> set[str]:
        """Return the modules of ours that one imports; type checking alone does not count."""
        found = set()
        for node in _executed(module.tree):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                found |= inner & self.modules.keys() or {node.module}
        return {name for name in found if name in self.modules and name != module.name}

    @cached_property
    def importers(self) -> dict[str, set[str]]:
        """By module, those that import it."""
        found: dict[str, set[str]] = {name: set() for name in self.modules}
        for module in self.modules.values():
            for name in self.imports(module):
                found[name].add(module.name)
        return found

    def with_one_importer(self) -> list[Module]:
        """Return the modules that exactly one other imports."""
        return [self.modules[name] for name, found in self.importers.items() if len(found) == 1]

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Return files and lines by package, those beside the packages last."""
        files: Counter[str] = Counter()
        lines: Counter[str] = Counter()
        for module in self.modules.values():
            files[module.part] += 1
            lines[module.part] += len(module.lines)
        return {
            part: (files[part], lines[part]) for part in sorted(files, key=lambda p: (not p, p))
        }

    def cycles(self, package: str) -> list[list[str]]:
        """Return the groups of modules of a package that reach each other by imports."""
        names = {name for name in self.modules if f"{name}.".startswith(f"{package}.")}
        edges = {name: self.imports(self.modules[name]) & names for name in names}
        reached = {name: _reachable(name, edges) for name in names}
        groups = {
            tuple(sorted(o for o in reached[name] if name in reached[o]))
            for name in names
            if name in reached[name]
        }
        return sorted(map(list, groups))


def _find_modules(root: Path) -> Iterator[Module]:
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        yield Module(".".join(parts[:-1] if parts[-1] == "__init__" else parts), path)


def _executed(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes, without what stands below `if TYPE_CHECKING`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        yield node
        yield from _executed(node)


def _reachable(start: str, edges: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    ahead = list(edges[start])
    while ahead:
        name = ahead.pop()
        if name not in found:
            found.add(name)
            ahead += edges[name]
    return found


def figures(house: House) -> Iterator[tuple[str, str]]:
    """Yield each figure with its name, as the rows of a table."""
    sizes = house.sizes()
    for part, (n_files, n_lines) in sizes.items():
        yield f"`{part}/`" if part else "beside them", f"{n_files} / {n_lines:,}"
    all_files, all_lines = (sum(each) for each in zip(*sizes.values(), strict=True))
    yield "all files / lines", f"{all_files} / {all_lines:,}"
    single = house.with_one_importer()
    n_small = sum(len(module.lines) < SMALL for module in single)
    yield f"modules with one importer (below {SMALL} lines)", f"{len(single)} ({n_small})"
    comments = sum(module.n_comments for module in house.modules.values())
    yield "lines with a comment", f"{comments / all_lines:.1%}"
    yield (
        "modules of `parallel/` in a cycle of imports",
        str(sum(map(len, house.cycles(f"{PACKAGE}.parallel")))),
    )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.house", description=__doc__)
    parser.add_argument("--root", type=Path, default=ROOT, help="another clone to look at")
    parser.add_argument("--no-walks", action="store_true", help="only what needs no run")
    parser.add_argument("--list", action="store_true", help="name the files of each walk")
    args = parser.parse_args()
    print("| | files / lines |\n|---|--:|")
    for name, figure in figures(House(args.root)):
        print(f"| {name} | {figure} |")
    if args.no_walks:
        return
    from benchmarks.house_walks import walk_all

    print("\n| walk | files entered | functions |\n|---|--:|--:|", flush=True)
    for name, entered in walk_all(args.root):
        files = Counter(line.partition("\t")[0] for line in entered)
        print(f"| {name} | {len(files)} | {len(entered)} |", flush=True)
        for file, n_functions in sorted(files.items()) if args.list else ():
            print(f"    {n_functions:4} {file}")


if __name__ == "__main__":
    main()
