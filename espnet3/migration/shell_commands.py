"""Follow a parsed script as far as its values are known, and note what cannot be known.

Variables, simple tests, loops over words and functions are followed, because their outcome is
certain. What only a running shell could tell, such as the output of a command or whether a file
exists, is `Unknown`, and so is all that depends on it. Nothing is run, and nothing is guessed.
"""

import fnmatch
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from espnet3.migration.shell_syntax import (
    Case,
    Chain,
    For,
    Function,
    Group,
    If,
    Node,
    Nodes,
    Not,
    Simple,
    Undecided,
    assignment_in,
    parse,
)
from espnet3.migration.shell_values import Field, ShellVariables, Stored, Unknown, Value

_HARMLESS = {
    "set", "echo", "log", "printf", "cd", "mkdir", "shift", "wait", "touch", "trap", "ulimit",
    "exit", "return", ":", "true", "false", "date", "sleep", "shopt", "pwd", "hostname", "ls",
    "cat", "module", "conda", "nvidia-smi", "tee",
}  # fmt: skip
_WRAPPERS = {"bash", "sh", "exec", "nohup", "time", "nice", "env", "command"}
"""Commands that start the script that follows."""
_WRITERS = {"eval", "read", "readarray", "mapfile", "let", "getopts", "printf"}
"""Builtins that give variables a value, by their names, that is not followed."""
_LOCAL = ("local", "declare", "typeset")
_SETTERS = {"export", "declare", "local", "readonly", "typeset"}
_SOURCES = {".", "source"}
_MOST_STEPS = 20_000
_MOST_DEPTH = 30
_ELEMENT = re.compile(r"[A-Za-z_]\w*\[[^]]*\]\+?=")


@dataclass(frozen=True)
class Call:
    """A command that the script runs."""

    program: str
    words: tuple[Field, ...]
    line: int
    file: str
    is_certain: bool = True
    """False inside of a condition or loop that could not be decided."""


@dataclass(frozen=True)
class Remark:
    """Something in a script that was followed in a way that deserves a line, or not at all."""

    file: str
    line: int
    text: str
    is_open: bool
    """Whether it could not be followed."""


class _Exit(Exception):
    """The script ends here."""


class _Jump(Exception):
    """`break` or `continue`."""


@dataclass
class ScriptReader(ShellVariables):
    """Follows scripts; variables, calls and remarks are what they leave.

    Args:
        read_source: Returns text and name of a file that is sourced; None for one to leave out.
    """

    read_source: Callable[[str], tuple[str, str] | None] = lambda path: None
    calls: list[Call] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)
    _doubtful: set[str] = field(default_factory=set)
    """Functions that may be others, or not be there."""
    _hidden: list[dict[str, Stored | None]] = field(default_factory=list)
    """Values of the caller's variables, for each function that declares others of that name."""
    _depth: int = 0
    _steps: int = 0
    _is_asking: bool = False
    """Whether a condition is followed, whose commands only answer."""
    _jump: str = ""
    """A `break` or `continue` of the loop that may have happened."""

    def read(self, text: str, name: str, *, certain: bool = True) -> None:
        """Follow a script from its first line.

        Args:
            text: Of the script.
            name: Of its file.
            certain: Whether it runs at all.

        Raises:
            ShellError: It cannot be parsed.
        """
        nodes = parse(text.replace("\r\n", "\n"), name)
        before, self._file = self._file, name
        try:
            self._run(nodes, certain=certain)
        except (_Exit, _Jump):
            pass
        finally:
            self._file = before

    # --- Commands ------------------------------------------------------------------------------

    def _run(self, nodes: Nodes, *, certain: bool) -> bool | None:
        """Follow commands; return whether the last one succeeds, None if that is not known."""
        status: bool | None = True
        for node in nodes:
            status = self._node(node, certain and not self._jump)
        return status

    def _node(self, node: Node, certain: bool) -> bool | None:
        self._steps += 1
        if self._steps > _MOST_STEPS:
            self._remark(node.line, "more loops than can be followed; the rest was not read", True)
            raise _Exit
        match node:
            case Simple():
                return self._simple(node, certain)
            case If():
                return self._if(node, certain)
            case For():
                return self._for(node, certain)
            case Case():
                return self._case(node, certain)
            case Undecided():
                self._remark(node.line, f"{node.kind}, which was not followed", True)
                self._run(node.body, certain=False)
            case Function():
                self._define(node, certain)
                return True
            case Group():
                return self._group(node, certain)
            case Chain():
                return self._chain(node, certain)
            case Not():
                status = self._node(node.node, certain)
                return None if status is None else not status
        return None

    def _define(self, node: Function, certain: bool) -> None:
        if certain:
            self._functions[node.name] = node.body
            self._doubtful.discard(node.name)
        else:
            self._functions[node.name] = self._functions.get(node.name, ()) + node.body
            self._doubtful.add(node.name)

    def _group(self, node: Group, certain: bool) -> bool | None:
        if not node.is_subshell:
            return self._run(node.body, certain=certain)
        if len(node.body) == 1 and isinstance(node.body[0], Group) and node.body[0].is_subshell:
            self._arithmetic(node.body[0])
            return None
        before = dict(self.variables)
        try:
            return self._run(node.body, certain=certain)
        except (_Exit, _Jump):
            return None
        finally:
            self.variables = before

    def _arithmetic(self, node: Group) -> None:
        """Forget the variables in `((n += 1))`, which is not computed."""
        for one in node.body:
            if isinstance(one, Simple):
                texts = [word.raw for word in one.words] + [a.name for a in one.assignments]
                self._forget(texts, node.line)

    def _forget(self, texts: list[str], line: int) -> None:
        for text in texts:
            for name in re.findall(r"(?<!-)\b[A-Za-z_]\w*", text):
                value = Unknown(f"${name}", f"it is computed at {self._file}:{line}")
                self._assign(name, value, line)

    def _chain(self, node: Chain, certain: bool) -> bool | None:
        pipes: list[tuple[str, list[Node]]] = [("", [node.first])]
        for operator, following in node.rest:
            if operator in ("|", "|&"):
                pipes[-1][1].append(following)
            else:
                pipes.append((operator, [following]))
        status = self._pipe(pipes[0][1], certain)
        for operator, nodes in pipes[1:]:
            if status is None:
                self._pipe(nodes, False)
            elif status == (operator == "&&"):
                status = self._pipe(nodes, certain)
        return status

    def _pipe(self, nodes: list[Node], certain: bool) -> bool | None:
        """Follow commands of a pipe, each of which is a subshell whose variables are lost."""
        if len(nodes) == 1:
            return self._node(nodes[0], certain)
        found = {self._group(Group(one.line, (one,), is_subshell=True), certain) for one in nodes}
        return found.pop() if len(found) == 1 else None

    def _if(self, node: If, certain: bool) -> bool | None:
        for condition, body in node.branches:
            holds = True if condition is None else self._ask(condition, certain)
            if holds is None:
                self._remark(node.line, "a condition that only a running shell could decide", True)
                for _, other in node.branches:
                    self._run(other, certain=False)
                return None
            if holds:
                return self._run(body, certain=certain)
        return True

    def _case(self, node: Case, certain: bool) -> bool | None:
        word = self._known(node.word)
        for patterns, body in node.branches:
            spelled = [self._pattern(one) for one in patterns]
            if word is None or None in spelled:
                self._remark(node.line, "a case that only a running shell could decide", True)
                for _, other in node.branches:
                    self._run(other, certain=False)
                return None
            if any(one is not None and fnmatch.fnmatchcase(word, one) for one in spelled):
                return self._run(body, certain=certain)
        return True

    def _ask(self, condition: Nodes, certain: bool) -> bool | None:
        before, self._is_asking = self._is_asking, True
        try:
            return self._run(condition, certain=certain)
        finally:
            self._is_asking = before

    def _for(self, node: For, certain: bool) -> bool | None:
        fields = [field for word in node.words or () for field in self._expand(word)]
        values = [field.value for field in fields]
        has_pattern = any(isinstance(v, str) and set(v) & set("*?") for v in values)
        if node.words is None or has_pattern or any(isinstance(v, Unknown) for v in values):
            self._remark(node.line, "a loop over what only a running shell could tell", True)
            self._assign(node.name, Unknown(f"${node.name}", "it is set by a loop"), node.line)
            return self._run(node.body, certain=False)
        outer, may_have_ended = self._jump, False
        for value in values:
            self._jump = ""
            self._take_value(node.name, value, node.line, certain and not may_have_ended)
            try:
                self._run(node.body, certain=certain and not may_have_ended)
            except _Jump as jump:
                if str(jump) == "break":
                    break
            may_have_ended = may_have_ended or self._jump == "break"
        self._jump = outer
        return None

    def _simple(self, node: Simple, certain: bool) -> bool | None:
        self._is_certain = certain
        if not node.words:
            for assignment in node.assignments:
                self._take(assignment, certain)
            return True
        first = node.words[0]
        if node.is_test or first.is_plain("[", "test"):
            return self._test(node)
        if first.is_plain(*_SETTERS):
            for word in node.words[1:]:
                assigned = assignment_in(word)
                if first.is_plain(*_LOCAL) and self._hidden:
                    name = assigned.name if assigned else word.raw
                    self._hidden[-1].setdefault(name, self.variables.get(name))
                if assigned:
                    self._take(assigned, certain)
            return True
        fields = [field for word in node.words for field in self._expand(word)]
        if not fields:
            return True
        return self._command(fields, node.line, certain)

    def _command(self, fields: list[Field], line: int, certain: bool) -> bool | None:
        first = fields[0].value
        if isinstance(first, Unknown):
            self._remark(line, f"the command {first.text}, which is not known", True)
            return None
        if first in ("exit", "return", "break", "continue"):
            self._leave(first, certain)
            return None
        if first == "shift" or (first == "set" and "--" in [field.value for field in fields[1:2]]):
            self._change_arguments([field.value for field in fields], certain)
            return True
        if _ELEMENT.match(first):
            self._forget([first.partition("[")[0]], line)
            return True
        if first in _SOURCES:
            self._source(fields, line, certain)
            return True
        if first in _WRITERS or first == "unset":
            return self._write(first, fields[1:], line, certain)
        if first in self._functions:
            return self._function(first, fields, certain and first not in self._doubtful)
        if first in _WRAPPERS:
            started = [i for i, one in enumerate(fields) if str(one.value).endswith(".sh")]
            if started:
                return self._command(fields[started[0] :], line, certain)
        if first not in _HARMLESS:
            is_certain = certain and not self._is_asking
            call = Call(first, tuple(fields[1:]), line, self._file, is_certain)
            self.calls.append(call)
            return None
        return first != "false"

    def _leave(self, word: str, certain: bool) -> None:
        if certain:
            raise _Exit if word in ("exit", "return") else _Jump(word)
        if word in ("break", "continue"):
            self._jump = self._jump or word

    def _write(self, word: str, fields: list[Field], line: int, certain: bool) -> bool | None:
        """Follow a builtin that changes variables by their names."""
        names = [one.value for one in fields if isinstance(one.value, str)]
        if word == "unset" and certain:
            for name in names:
                self.variables.pop(name, None)
            self._forget([name.partition("[")[0] for name in names if "[" in name], line)
            return True
        if word == "printf" and names[:1] != ["-v"]:
            return True
        self._forget(names, line)
        return None

    def _function(self, name: str, fields: list[Field], certain: bool) -> bool | None:
        if self._depth >= _MOST_DEPTH:
            return None
        self._hidden.append({key: self.variables.get(key) for key in "123456789@"})
        self._set_arguments([field.value for field in fields[1:]])
        self._depth += 1
        try:
            return self._run(self._functions[name], certain=certain)
        except _Exit:  # `return`, as far as it is known
            return None
        finally:
            self._depth -= 1
            for key, value in self._hidden.pop().items():
                if value is None:
                    self.variables.pop(key, None)
                else:
                    self.variables[key] = value

    def _set_arguments(self, values: list[Value]) -> None:
        self.variables["@"] = values
        for number in range(1, 10):
            self.variables[str(number)] = values[number - 1] if number <= len(values) else ""

    def _change_arguments(self, words: list[Value], certain: bool) -> None:
        """Follow `set -- a b` and `shift 2`."""
        known = self.variables.get("@")
        new = words[2:]
        if words[0] == "shift":
            if not isinstance(known, list):
                return  # what a user adds on the command line
            first = words[1] if len(words) > 1 else "1"
            certain = certain and isinstance(first, str) and first.isdigit()
            new = known[int(first) :] if certain and isinstance(first, str) else known
        if not certain:
            new = [Unknown("$@", f"it is changed in {self._file}, in a way that was not decided")]
        self._set_arguments(new)

    def _source(self, fields: list[Field], line: int, certain: bool) -> None:
        path = fields[1].value if len(fields) > 1 else ""
        if isinstance(path, Unknown):
            self._remark(line, f"sources {path.text}, which is not known: {path.reason}", True)
            return
        found = self.read_source(path)
        if found is None:
            return
        if self._depth >= _MOST_DEPTH:
            self._remark(line, f"sources {path} from itself", True)
            return
        self._depth += 1
        self.read(*found, certain=certain)
        self._depth -= 1

    def _remark(self, line: int, text: str, is_open: bool) -> None:
        remark = Remark(self._file, line, text, is_open)
        if remark not in self.remarks:
            self.remarks.append(remark)


def base_name(program: str) -> str:
    """Return the last part of a command, such as `asr.sh`."""
    return PurePosixPath(program).name
