"""Expand what the shell expands: variables, arithmetic, tests, and the output of pure commands.

What only a running shell could tell is `Unknown`. Nothing is run, and nothing is guessed.
"""

import ast
import fnmatch
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from espnet3.migration.shell_syntax import (
    Assignment,
    Chain,
    Nodes,
    Part,
    ShellError,
    Simple,
    Token,
    parse,
    parse_word,
)

_EXPRESSION = re.compile(r"(\w+|[@*])(?:\[([^\]]*)\])?(.*)", re.DOTALL)
_BRACES = re.compile(r"\{[^{}]*(?:,|\.\.)[^{}]*\}")
_IFS = "words are cut where IFS says, which the script sets"
_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b, "-ne": lambda a, b: a != b, "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b, "-gt": lambda a, b: a > b, "-ge": lambda a, b: a >= b,
}  # fmt: skip


@dataclass(frozen=True)
class Unknown:
    """A value that only a running shell could tell."""

    text: str
    reason: str


Value = str | Unknown
Stored = Value | list[Value]


@dataclass(frozen=True)
class Field:
    """A word of a command after expansion."""

    value: Value
    line: int


@dataclass
class ShellVariables:
    """The variables of a script, and what its words become by them."""

    variables: dict[str, Stored] = field(default_factory=dict, init=False)
    set_at: dict[str, int] = field(default_factory=dict, init=False)
    _file: str = field(default="", init=False)
    _functions: dict[str, Nodes] = field(default_factory=dict, init=False)
    _is_certain: bool = field(default=True, init=False)
    """Whether the command that is expanded is run."""

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


def split_pieces(value: str | list[Value], is_quoted: bool) -> list[Value | None]:
    """Return where a value is split; None stands for the edge at a blank."""
    if isinstance(value, list):
        return list(value)
    if is_quoted:
        return [value]
    words: list[Value | None] = list(value.split())
    if value[:1].isspace():
        words.insert(0, None)
    if value[-1:].isspace():
        words.append(None)
    return words


def is_joined(expression: str) -> bool:
    """Tell whether a quoted list is one word: `"${sets[*]}"`, `"$*"`."""
    return expression == "*" or expression.endswith("[*]")


def join_list(values: list[Value]) -> Value:
    """Return the elements of an array as one word."""
    reason = next((value.reason for value in values if isinstance(value, Unknown)), "")
    text = " ".join(value.text if isinstance(value, Unknown) else value for value in values)
    return Unknown(text, reason) if reason else text


def word_of(text: str | None, reason: str) -> Value:
    """Return a word of a command, which is unknown if there is a reason for it."""
    return Unknown(text or "", reason) if reason else (text or "")


def change_value(value: str, form: str, text_of: Callable[[str], Value], unread: Unknown) -> Value:
    """Return a value after `${name%x}`, `${name/a/b}` and the like; `unread` for other forms."""
    if form.startswith("/"):
        return _substituted(value, form[1:], text_of, unread)
    if form in _CASES:
        return _CASES[form](value)
    part = re.fullmatch(r":\s*(-?\d+)(?::(\d+))?", form)
    if part and not form.startswith(":-"):
        begin = int(part[1])
        rest = value[begin:] if -begin <= len(value) else ""
        return rest[: int(part[2])] if part[2] else rest
    for mark in ("%%", "%", "##", "#"):
        if form.startswith(mark):
            pattern = text_of(form[len(mark) :])
            if isinstance(pattern, Unknown):
                return unread
            return _cut(value, pattern, from_end=mark[0] == "%", longest=len(mark) == 2)
    return unread


_CASES: dict[str, Callable[[str], str]] = {
    ",,": str.lower, "^^": str.upper,
    ",": lambda text: text[:1].lower() + text[1:], "^": lambda text: text[:1].upper() + text[1:],
}  # fmt: skip


def _substituted(value: str, form: str, text_of: Callable[[str], Value], unread: Unknown) -> Value:
    """Return a value after `${name/old/new}`; `form` begins behind the first slash."""
    kind = form[:1] if form[:1] in ("/", "#", "%") else ""
    parts = re.fullmatch(r"((?:\\.|[^/\\'\"$])+)(?:/([^'\"]*))?", form[len(kind) :], re.DOTALL)
    if parts is None:
        return unread
    old, new = text_of(parts[1]), text_of(parts[2] or "")
    if isinstance(old, Unknown) or isinstance(new, Unknown) or set(old) & set("*?["):
        return unread
    if kind == "#":
        return new + value[len(old) :] if value.startswith(old) else value
    if kind == "%":
        return value[: len(value) - len(old)] + new if value.endswith(old) else value
    return value.replace(old, new, -1 if kind == "/" else 1)


def computed(text: str, values: Mapping[str, str]) -> int | None:
    """Return the whole number that an expression is, such as `n * 2`; None if it is none."""
    try:
        return _number(ast.parse(text.strip(), mode="eval").body, values)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return None


def _number(node: ast.AST, values: Mapping[str, str]) -> int:
    match node:
        case ast.Constant(value=int() as number) if not isinstance(number, bool):
            return number
        case ast.Name(id=name) if re.fullmatch(r"-?(0|[1-9]\d*)", values.get(name, "")):
            return int(values[name])
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_number(inner, values)
        case ast.BinOp(left=left, op=operator, right=right):
            a, b = _number(left, values), _number(right, values)
            match operator:
                case ast.Add():
                    return a + b
                case ast.Sub():
                    return a - b
                case ast.Mult():
                    return a * b
                case ast.Div():  # the shell rounds towards zero
                    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
                case ast.Mod():
                    return (1 if a >= 0 else -1) * (abs(a) % abs(b))
    raise ValueError(ast.dump(node))


def _cut(value: str, pattern: str, *, from_end: bool, longest: bool) -> str:
    sizes = range(len(value) + 1)
    for size in reversed(sizes) if longest else sizes:
        piece = value[len(value) - size :] if from_end else value[:size]
        if fnmatch.fnmatchcase(piece, pattern):
            return value[: len(value) - size] if from_end else value[size:]
    return value


_CLASSES = {
    "[:upper:]": "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "[:lower:]": "abcdefghijklmnopqrstuvwxyz",
    "A-Z": "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "a-z": "abcdefghijklmnopqrstuvwxyz",
}  # fmt: skip


def printed_by(commands: list[list[str]]) -> str | None:
    """Return what a pipe of commands prints that depends on nothing but their words.

    These are `echo`, behind which `tr` and `sed s/a/b/` may stand, `basename` and `dirname`; None
    for all others.

    Example:
        >>> printed_by([["echo", "wavlm/21"], ["tr", "/", "_"]])
        'wavlm_21'
    """
    first, *filters = commands
    text = _first_text(first[0], first[1:])
    for words in filters:
        if text is None:
            return None
        text = {"tr": _translated, "sed": _replaced}.get(words[0], _unread)(text, words[1:])
    return text if text is None else text.rstrip("\n")


def _first_text(name: str, words: list[str]) -> str | None:
    if name == "echo":
        words = words[1:] if words[:1] == ["-n"] else words
        return None if words and words[0].startswith("-") else " ".join(words)
    if any(word.startswith("-") or not word.strip("/") for word in words):
        return None
    if name == "basename" and len(words) in (1, 2):
        base = words[0].rstrip("/").rpartition("/")[2]
        ending = words[1] if len(words) == 2 else ""
        return base.removesuffix(ending) if base != ending else base
    if name == "dirname" and len(words) == 1:
        above = words[0].rstrip("/").rpartition("/")
        return above[0].rstrip("/") or above[1] or "."
    return None


def _unread(text: str, words: list[str]) -> str | None:
    return None


def _translated(text: str, words: list[str]) -> str | None:
    sets = [_CLASSES.get(word, word) for word in words]
    if len(sets) == 2 and sets[0] == "-d" and _is_plain(sets[1]):
        return "".join(char for char in text if char not in sets[1])
    if len(sets) != 2 or not all(_is_plain(one) for one in sets):
        return None
    old, new = sets[0], sets[1] + sets[1][-1] * len(sets[0])
    # The last of several equal characters counts.
    return text.translate({ord(char): new[i] for i, char in enumerate(old)})


def _is_plain(characters: str) -> bool:
    """Tell whether `tr` takes each for itself."""
    return (
        bool(characters) and not set(characters[:-1]) & {"-"} and not set(characters) & set("[]\\")
    )


def _replaced(text: str, words: list[str]) -> str | None:
    words = words[1:] if words[:1] == ["-e"] else words
    found = re.fullmatch(r"s(\W)(.+?)\1(.*?)\1(g?)", words[0]) if len(words) == 1 else None
    if found is None or set(found[2]) & set(r"\.[]*^$&") or set(found[3]) & set("\\&\n"):
        return None
    return text.replace(found[2], found[3], -1 if found[4] else 1)
