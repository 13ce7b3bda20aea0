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

from espnet3.migration.shell_expansion import (
    Stored,
    Unknown,
    Value,
    change_value,
    computed,
    is_joined,
    join_list,
    printed_by,
    split_pieces,
    word_of,
)
from espnet3.migration.shell_syntax import (
    Assignment,
    Case,
    Chain,
    For,
    Function,
    Group,
    If,
    Node,
    Nodes,
    Not,
    Part,
    ShellError,
    Simple,
    Token,
    Undecided,
    assignment_in,
    parse,
    parse_word,
)

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
_EXPRESSION = re.compile(r"(\w+|[@*])(?:\[([^\]]*)\])?(.*)", re.DOTALL)
_BRACES = re.compile(r"\{[^{}]*(?:,|\.\.)[^{}]*\}")
_ELEMENT = re.compile(r"[A-Za-z_]\w*\[[^]]*\]\+?=")
_IFS = "words are cut where IFS says, which the script sets"
_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b, "-ne": lambda a, b: a != b, "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b, "-gt": lambda a, b: a > b, "-ge": lambda a, b: a >= b,
}  # fmt: skip


@dataclass(frozen=True)
class Field:
    """A word of a command after expansion."""

    value: Value
    line: int


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
class ScriptReader:
    """Follows scripts; variables, calls and remarks are what they leave.

    Args:
        read_source: Returns text and name of a file that is sourced; None for one to leave out.
    """

    read_source: Callable[[str], tuple[str, str] | None] = lambda path: None
    variables: dict[str, Stored] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)
    set_at: dict[str, int] = field(default_factory=dict)
    _file: str = ""
    _functions: dict[str, Nodes] = field(default_factory=dict)
    _doubtful: set[str] = field(default_factory=set)
    """Functions that may be others, or not be there."""
    _hidden: list[dict[str, Stored | None]] = field(default_factory=list)
    """Values of the caller's variables, for each function that declares others of that name."""
    _is_certain: bool = True
    """Whether the command that is expanded is run."""
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

    # --- Variables -----------------------------------------------------------------------------

    def _take(self, assignment: Assignment, certain: bool) -> None:
        token = assignment.value
        name = assignment.name
        new: Stored
        if not certain:
            new = Unknown(f"${name}", f"it is set at {self._file}:{token.line}, in a condition or "
                          "loop that was not decided")  # fmt: skip
        elif token.kind == "array":
            old = self.variables.get(name, []) if assignment.is_added else []
            words = [field.value for word in token.elements for field in self._expand(word)]
            new = [*(old if isinstance(old, list) else [old]), *words]
        else:
            new = self._joined(token)
            old = self.variables.get(name, "") if assignment.is_added else ""
            if isinstance(old, Unknown):
                new = old
            elif isinstance(new, str) and isinstance(old, str):
                new = old + new
        self._assign(name, new, token.line)

    def _take_value(self, name: str, value: Value, line: int, certain: bool) -> None:
        """Give the variable of a loop its value."""
        if not certain:
            value = Unknown(f"${name}", f"it is set at {self._file}:{line}, by a loop that may end "
                            "before")  # fmt: skip
        self._assign(name, value, line)

    def _assign(self, name: str, value: Stored, line: int) -> None:
        self.variables[name] = value
        self.set_at[name] = line

    def _joined(self, token: Token) -> Value:
        """Expand a word without splitting it, as on the right of `=`."""
        text, reason = "", ""
        for part in token.parts:
            value = self._part(part)
            if isinstance(value, list):
                reason = reason or next((v.reason for v in value if isinstance(v, Unknown)), "")
                text += " ".join(v.text if isinstance(v, Unknown) else v for v in value)
            elif isinstance(value, Unknown):
                reason, text = reason or value.reason, text + value.text
            else:
                text += value
        return Unknown(text, reason) if reason else text

    def _part(self, part: Part) -> Stored:
        if part.kind == "text":
            return part.text
        if part.kind == "command" and part.text[:1] == "(" and part.text[-1:] == ")":
            return self._computed(part.text[1:-1])
        if part.kind == "command":
            output = self._output(part.text)
            if output is not None:
                return output
            return Unknown(f"$({part.text})", "it is the output of a command, which is not run")
        return self._variable(part.text, part.is_quoted)

    def _computed(self, text: str) -> Value:
        """Return what `$((n * 2))` is, if it is made of whole numbers."""
        names = dict.fromkeys(re.findall(r"\$?\{?\b([A-Za-z_]\w*)\b\}?", text))
        values = {name: self._variable(name) for name in names}
        plain = re.sub(r"\$\{?([A-Za-z_]\w*)\}?", r"\1", text)
        known = {name: value for name, value in values.items() if isinstance(value, str)}
        number = computed(plain, known) if len(known) == len(values) else None
        reason = "it is computed in a way that is not read"
        return Unknown(f"$(({text}))", reason) if number is None else str(number)

    def _output(self, text: str) -> str | None:
        """Return what `$(echo ... | tr a b)` and the like print; None for other commands."""
        try:
            nodes = parse(text, self._file)
        except ShellError:
            return None
        if len(nodes) != 1:
            return None
        node = nodes[0]
        rest = node.rest if isinstance(node, Chain) else ()
        commands = [node.first if isinstance(node, Chain) else node, *(one for _, one in rest)]
        words: list[list[str]] = []
        for command in commands:
            if not isinstance(command, Simple) or command.assignments or command.is_redirected:
                return None
            values = [field.value for word in command.words for field in self._expand(word)]
            known = [value for value in values if isinstance(value, str)]
            if len(known) < len(values) or not known or known[0] in self._functions:
                return None
            words.append(known)
        if any(operator != "|" for operator, _ in rest):
            return None
        return printed_by(words)

    def _expand(self, token: Token) -> list[Field]:
        """Expand a word as the shell does: what is not quoted is split at blanks."""
        fields: list[Value] = []
        text: str | None = None
        reason = ""
        has_list = any(isinstance(self._part(p), list) for p in token.parts if p.kind == "variable")
        for part in token.parts:
            value = self._part(part)
            reason = reason or self._doubt(part, value, is_first=part is token.parts[0])
            if isinstance(value, list) and part.is_quoted and is_joined(part.text):
                value = join_list(value)
            if part.kind == "text":
                if part.text or not has_list:
                    text = (text or "") + part.text
                continue
            if isinstance(value, Unknown):
                reason, text = reason or value.reason, (text or "") + value.text
                continue
            pieces = split_pieces(value, part.is_quoted)
            for position, piece in enumerate(pieces):
                if position:
                    fields.append(word_of(text, reason))
                    text, reason = None, reason if reason == _IFS else ""
                if isinstance(piece, Unknown):
                    reason, text = piece.reason, (text or "") + piece.text
                elif piece is not None:
                    text = (text or "") + piece
        if text is not None:
            fields.append(word_of(text, reason))
        return [Field(value, token.line) for value in fields]

    def _doubt(self, part: Part, value: Stored, *, is_first: bool) -> str:
        """Return why a part of a word may become other words than it says; empty: it does not."""
        if "IFS" in self.variables and part.kind != "text":
            return "" if part.is_quoted and not isinstance(value, list) else _IFS
        if part.is_quoted or not isinstance(value, str):
            return ""
        if part.kind == "text" and _BRACES.search(value):
            return "braces with several words in them are not expanded"
        if set(value) & set("*?"):
            return "a pattern that names files is not expanded"
        is_home = part.kind == "text" and is_first and value.startswith("~")
        return "it is below a home folder" if is_home else ""

    def _variable(self, expression: str, is_quoted: bool = False) -> Stored:
        found = _EXPRESSION.fullmatch(expression)
        if found is None:
            arguments = self.variables.get("@")
            if expression == "#" and isinstance(arguments, list):
                return str(len(arguments))
            if expression in ("#", "?", "-", "$", "!"):
                return Unknown(f"${expression}", "it is set by the shell")
            if re.fullmatch(r"#\w+(\[[@*]\])?", expression):
                return self._length(expression[1:])
            if re.fullmatch(r"![A-Za-z_]\w*", expression):
                name = self._variable(expression[1:])
                if isinstance(name, str) and re.fullmatch(r"[A-Za-z_]\w*", name):
                    return self._variable(name)
            return Unknown(f"${{{expression}}}", "this form of expansion is not read")
        name, index, form = found.groups()
        value = self.variables.get("@" if name == "*" else name)
        if name in ("@", "*"):
            # What a user adds on the command line; here there is nothing.
            return value if isinstance(value, list) else []
        if isinstance(value, list):
            value = self._element(value, index, name)
        elif index is not None and value is None:
            value = Unknown(f"${{{expression}}}", f"{name} is not set")
        if not form:
            return value if value is not None else self._unset(name)
        return self._formed(name, value, form, expression, is_quoted)

    def _length(self, expression: str) -> Value:
        value = self._variable(expression)
        if isinstance(value, Unknown):
            return Unknown(f"${{#{expression}}}", value.reason)
        return str(len(value))

    def _element(self, values: list[Value], index: str | None, name: str) -> Stored:
        if index in ("@", "*"):
            return values
        if index is None or re.fullmatch(r"-?\d+", index):
            number = int(index or 0)
            return values[number] if -len(values) <= number < len(values) else ""
        return Unknown(f"${{{name}[{index}]}}", "an element of an array that is not known")

    def _unset(self, name: str) -> Value:
        if name.isdigit():
            return Unknown(f"${name}", "it is an argument of the script")
        return Unknown(f"${{{name}}}", f"{name} is set in no file that was read")

    def _formed(
        self, name: str, value: Stored | None, form: str, expression: str, is_quoted: bool
    ) -> Stored:
        """Return what `${name:-x}`, `${name%x}`, `${name/a/b}` and the like are."""
        unread = Unknown(f"${{{expression}}}", "this form of expansion is not read")
        default = re.match(r":?([-=+?])", form)
        if default:
            other = form[default.end() :]
            is_empty = value is None or (form[0] == ":" and value == "")
            if default[1] == "+":
                return "" if is_empty else self._default(other, is_quoted)
            if not is_empty:
                assert value is not None
                return value
            if default[1] == "?":
                return unread
            text = self._default(other, is_quoted)
            if default[1] == "=":
                place = f"it may be set in {self._file}, in a condition that was not decided"
                new = join_list(text) if isinstance(text, list) else text
                self.variables[name] = new if self._is_certain else Unknown(f"${name}", place)
            return text
        if value is None:
            return self._unset(name)
        if isinstance(value, list):
            return unread
        if isinstance(value, Unknown):
            return Unknown(f"${{{expression}}}", value.reason)
        return change_value(value, form, self._text_of, unread)

    def _default(self, text: str, is_quoted: bool) -> Stored:
        """Return the text of `${x:-text}`, in which quotes hold words together.

        Within double quotes a single quote is a character like others.
        """
        if not set(text) & set("'\"\\"):
            return self._text_of(text)
        if is_quoted:
            plain = re.sub(r'(\\.)|"', lambda found: found[1] or "", text, flags=re.DOTALL)
            word = parse_word(f'"{plain}"', self._file)
            return self._joined(word) if word else Unknown(text, "a default of several words")
        nodes = parse(f": {text}", self._file)
        if len(nodes) != 1 or not isinstance(nodes[0], Simple):
            return Unknown(text, "a default of several words")
        return [field.value for word in nodes[0].words[1:] for field in self._expand(word)]

    def _text_of(self, text: str) -> Value:
        if not text:
            return ""
        word = parse_word(text, self._file)
        return self._joined(word) if word else Unknown(text, "a default of several words")

    # --- Tests ---------------------------------------------------------------------------------

    def _test(self, node: Simple) -> bool | None:
        words = list(node.words)
        end = "]]" if node.is_test else "]"
        if words[-1].is_plain(end):
            words = words[:-1]
        words = words[1:]
        return self._judge(words, is_pattern=node.is_test)

    def _judge(self, words: list[Token], *, is_pattern: bool) -> bool | None:
        for operators, combine in ((("||", "-o"), _any), (("&&", "-a"), _all)):
            at = next((i for i, w in enumerate(words) if _is(w, *operators)), None)
            if at is not None:
                left = self._judge(words[:at], is_pattern=is_pattern)
                return combine(left, self._judge(words[at + 1 :], is_pattern=is_pattern))
        if words and _is(words[0], "!"):
            result = self._judge(words[1:], is_pattern=is_pattern)
            return None if result is None else not result
        if len(words) == 3:
            return self._compare(words[0], words[1].raw, words[2], is_pattern)
        values = [self._known(word) for word in words]
        if any(value is None for value in values):
            return None
        if len(values) == 2 and values[0] in ("-z", "-n"):
            return (values[1] == "") == (values[0] == "-z")
        if len(values) == 1:
            return values[0] != ""
        return None

    def _known(self, word: Token) -> str | None:
        value = self._joined(word)
        if isinstance(value, Unknown) and value.reason.endswith("in no file that was read"):
            return None
        return value if isinstance(value, str) else None

    def _compare(self, left: Token, operator: str, right: Token, is_pattern: bool) -> bool | None:
        a, b = self._known(left), self._known(right)
        if a is None or b is None:
            return None
        if operator in ("=", "==", "!="):
            pattern = self._pattern(right) if is_pattern else None
            same = a == b if pattern is None else fnmatch.fnmatchcase(a, pattern)
            return same == (operator != "!=")
        if operator in _NUMBERS and a.lstrip("-").isdigit() and b.lstrip("-").isdigit():
            return _NUMBERS[operator](int(a), int(b))
        return None

    def _pattern(self, word: Token) -> str | None:
        """Return a word as a pattern, in which what is quoted stands for itself; None: unknown."""
        spelled = ""
        for part in word.parts:
            value = self._part(part)
            if not isinstance(value, str):
                return None
            spelled += re.sub(r"([*?[])", r"[\1]", value) if part.is_quoted else value
        return spelled


def _is(token: Token, *texts: str) -> bool:
    return token.is_plain(*texts) or token.text in texts


def _any(left: bool | None, right: bool | None) -> bool | None:
    if left or right:
        return True
    return None if left is None or right is None else False


def _all(left: bool | None, right: bool | None) -> bool | None:
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


def base_name(program: str) -> str:
    """Return the last part of a command, such as `asr.sh`."""
    return PurePosixPath(program).name
