"""Parse the shell that recipes are written in, without running any of it.

What is understood: words with quotes, variables and substitutions, continued lines, comments,
assignments, arrays, lists with `&&` and `||`, `if`, `for`, `while`, `case`, functions, groups and
here-documents. Nothing is expanded here; see `shell_values`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from espnet3.errors import EspnetError

_OPERATORS = (";;", "&&", "||", "&>>", "&>", "|&", "<<<", "<<-", "<<", ">>", ">&", "<&", ">|")
_REDIRECTIONS = {"&>>", "&>", "<<<", "<<-", "<<", ">>", ">&", "<&", ">|", "<", ">"}
_NAME = r"[A-Za-z_]\w*"
_ASSIGNMENT = re.compile(rf"({_NAME})(\+?)=")
_VARIABLE = re.compile(rf"{_NAME}|[0-9@*#?$!_-]")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}
_STRAY = ("then", "do", "done", "fi", "elif", "else", "esac", "}")


class ShellError(EspnetError):
    """A script is cut off or wrongly quoted."""


@dataclass(frozen=True)
class Part:
    """A piece of a word."""

    kind: Literal["text", "variable", "command"]
    text: str
    """Of a variable, what stands within the braces."""
    is_quoted: bool = False


@dataclass(frozen=True)
class Token:
    """A word, an operator, or an array that is assigned."""

    kind: Literal["word", "operator", "array"]
    line: int
    parts: tuple[Part, ...] = ()
    text: str = ""
    """The operator, or the beginning `name=` of an array."""
    elements: tuple["Token", ...] = ()

    def is_plain(self, *texts: str) -> bool:
        """Tell whether it is an unquoted word without expansions, and one of these."""
        return (
            self.kind == "word"
            and len(self.parts) == 1
            and self.parts[0].kind == "text"
            and not self.parts[0].is_quoted
            and self.parts[0].text in texts
        )

    @property
    def raw(self) -> str:
        """As it was written, nearly."""
        spelled = {"text": "{}", "variable": "${{{}}}", "command": "$({})"}
        return "".join(spelled[part.kind].format(part.text) for part in self.parts) or self.text


@dataclass(frozen=True)
class Assignment:
    """`name=value`; the value is a word or an array."""

    name: str
    is_added: bool
    value: Token


@dataclass(frozen=True)
class Simple:
    """A command with its words, or assignments alone."""

    line: int
    words: tuple[Token, ...]
    assignments: tuple[Assignment, ...] = ()
    is_test: bool = False
    """Whether it is a `[[ ... ]]`."""
    is_redirected: bool = False
    """Whether it reads or writes files."""


@dataclass(frozen=True)
class If:
    """Conditions with what is run where they hold; the last may have none."""

    line: int
    branches: tuple[tuple["Nodes | None", "Nodes"], ...]


@dataclass(frozen=True)
class For:
    """A loop over words; None for one over arguments or numbers."""

    line: int
    name: str
    words: tuple[Token, ...] | None
    body: "Nodes"


@dataclass(frozen=True)
class Case:
    """A word, and what is run where one of a branch's patterns fits it; the first counts."""

    line: int
    word: Token
    branches: tuple[tuple[tuple[Token, ...], "Nodes"], ...]


@dataclass(frozen=True)
class Undecided:
    """A loop whose body is run nobody knows how often."""

    line: int
    kind: str
    body: "Nodes"


@dataclass(frozen=True)
class Function:
    """A function that is defined."""

    line: int
    name: str
    body: "Nodes"


@dataclass(frozen=True)
class Group:
    """Commands in braces, or in a subshell, whose variables are lost."""

    line: int
    body: "Nodes"
    is_subshell: bool = False


@dataclass(frozen=True)
class Chain:
    """Commands joined by `&&`, `||` or `|`."""

    line: int
    first: "Node"
    rest: tuple[tuple[str, "Node"], ...]


@dataclass(frozen=True)
class Not:
    """A command behind `!`."""

    line: int
    node: "Node"


Node = Simple | If | For | Case | Undecided | Function | Group | Chain | Not
Nodes = tuple[Node, ...]


class _Lexer:
    def __init__(self, text: str, name: str, line: int = 1) -> None:
        self.text, self.name, self.line = text, name, line
        self.at = 0
        self.tokens: list[Token] = []
        self.parts: list[Part] = []
        self.start = line
        self.here: list[str] = []

    def fail(self, problem: str, line: int) -> ShellError:
        return ShellError(
            f"{self.name}:{line} {problem}.",
            fix=f"See whether the script is whole: bash -n {self.name}",
        )

    def run(self) -> list[Token]:
        while self.at < len(self.text):
            self._next()
        self._end_word()
        return self.tokens

    def _next(self) -> None:
        char = self.text[self.at]
        rest = self.text[self.at : self.at + 3]
        if rest.startswith("\\\n"):
            self.at, self.line = self.at + 2, self.line + 1
        elif char == "\n":
            self._end_word()
            self._operator("\n")
            self.line += 1
            self._skip_here_documents()
        elif char in " \t\r":
            self._end_word()
            self.at += 1
        elif char == "#" and not self.parts:
            end = self.text.find("\n", self.at)
            self.at = len(self.text) if end < 0 else end
        elif char in ";&|<>()":
            self._punctuation(char)
        else:
            self._word_part(char)

    def _operator(self, text: str) -> None:
        self.tokens.append(Token("operator", self.line, text=text))
        self.at += len(text)

    def _end_word(self) -> None:
        if self.parts:
            token = Token("word", self.start, tuple(self.parts))
            after = self.tokens[-1].text if self.tokens else ""
            if after in ("<<", "<<-"):
                self.here.append("".join(part.text for part in self.parts))
            self.tokens.append(token)
            self.parts = []

    def _add(self, kind: Literal["text", "variable", "command"], text: str, quoted: bool) -> None:
        if not self.parts:
            self.start = self.line
        last = self.parts[-1] if self.parts else None
        if kind == "text" and last and last.kind == "text" and last.is_quoted == quoted:
            self.parts[-1] = Part("text", last.text + text, quoted)
        else:
            self.parts.append(Part(kind, text, quoted))
        self.line += text.count("\n")

    def _punctuation(self, char: str) -> None:
        so_far = self.parts[0].text if len(self.parts) == 1 else ""
        if char == "(" and self.parts and _ASSIGNMENT.fullmatch(so_far):
            self._array(so_far)
            return
        if char in "<>" and self.text[self.at + 1 : self.at + 2] == "(":
            inside = self._balanced(self.at + 2, "(", ")")
            self._add("command", inside, False)
            self.at += len(inside) + 3
            return
        if char in "<>" and so_far.isdigit():
            self.parts = []  # the number of a file descriptor
        self._end_word()
        self._operator(next((op for op in _OPERATORS if self.text.startswith(op, self.at)), char))

    def _array(self, begin: str) -> None:
        inside = self._balanced(self.at + 1, "(", ")")
        elements = _Lexer(inside, self.name, self.line).run()
        words = tuple(token for token in elements if token.kind == "word")
        self.tokens.append(Token("array", self.start, text=begin, elements=words))
        self.parts = []
        self.at += len(inside) + 2
        self.line += inside.count("\n")

    def _word_part(self, char: str) -> None:
        if char == "'":
            end = self.text.find("'", self.at + 1)
            if end < 0:
                raise self.fail("opens a quote ' that is never closed", self.line)
            inside = self.text[self.at + 1 : end]
            self.at = end + 1
            self._add("text", inside, True)
        elif char == '"':
            self._double_quoted()
        elif char in "$`":
            self._expansion(is_quoted=False)
        elif char == "\\":
            following = self.text[self.at + 1 : self.at + 2]
            self.at += 2
            self._add("text", following, True)
        else:
            self.at += 1
            self._add("text", char, False)

    def _double_quoted(self) -> None:
        opened = self.line
        self.at += 1
        self._add("text", "", True)
        while True:
            char = self.text[self.at : self.at + 1]
            if not char:
                raise self.fail('opens a quote " that is never closed', opened)
            following = self.text[self.at + 1 : self.at + 2]
            if char == '"':
                self.at += 1
                return
            if char == "\\" and following in ("$", "`", '"', "\\", "\n"):
                self.at += 2
                if following == "\n":
                    self.line += 1
                else:
                    self._add("text", following, True)
            elif char in "$`":
                self._expansion(is_quoted=True)
            else:
                self.at += 1
                self._add("text", char, True)

    def _expansion(self, *, is_quoted: bool) -> None:
        text, at = self.text, self.at
        if text[at] == "`":
            end = text.find("`", at + 1)
            if end < 0:
                raise self.fail("opens a quote ` that is never closed", self.line)
            self.at = end + 1
            self._add("command", text[at + 1 : end], is_quoted)
        elif text.startswith("$'", at) and not is_quoted:
            found = re.compile(r"\$'((?:\\.|[^'\\])*)'", re.DOTALL).match(text, at)
            if found is None:
                raise self.fail("opens a quote ' that is never closed", self.line)
            self.at = found.end()
            if set(re.findall(r"\\(.)", found[1], re.DOTALL)) - set(_ESCAPES):
                self._add("variable", found[0], True)  # characters by their numbers: not read
            else:
                text = re.sub(r"\\(.)", lambda one: _ESCAPES[one[1]], found[1], flags=re.DOTALL)
                self._add("text", text, True)
        elif text.startswith('$"', at) and not is_quoted:
            self.at += 1  # translated where there is a translation
        elif text.startswith("$(", at):
            inside = self._balanced(at + 2, "(", ")")
            self.at = at + len(inside) + 3
            self._add("command", inside, is_quoted)
        elif text.startswith("${", at):
            inside = self._balanced(at + 2, "{", "}")
            self.at = at + len(inside) + 3
            self._add("variable", inside, is_quoted)
        else:
            found = _VARIABLE.match(text, at + 1)
            self.at = found.end() if found else at + 1
            if found:
                self._add("variable", found[0], is_quoted)
            else:
                self._add("text", "$", True)

    def _balanced(self, start: int, opening: str, closing: str) -> str:
        """Return what stands up to the closing bracket; those within quotes do not count."""
        depth, at, quote = 1, start, ""
        while at < len(self.text):
            char = self.text[at]
            if char == "\\" and quote != "'":
                at += 2
                continue
            if quote:
                quote = "" if char == quote else quote
            elif char in "'\"":
                quote = char
            elif char == opening:
                depth += 1
            elif char == closing:
                depth -= 1
                if not depth:
                    return self.text[start:at]
            at += 1
        raise self.fail(f"opens a bracket {opening} that is never closed", self.line)

    def _skip_here_documents(self) -> None:
        for end in self.here:
            while self.at < len(self.text):
                line, _, _ = self.text[self.at :].partition("\n")
                self.at, self.line = self.at + len(line) + 1, self.line + 1
                if line.strip() == end:
                    break
        self.here = []


@dataclass
class _Parser:
    tokens: Sequence[Token]
    name: str
    at: int = 0
    depth: int = field(default=0)

    def peek(self) -> Token | None:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def take(self) -> Token:
        token = self.tokens[self.at]
        self.at += 1
        return token

    def skip(self, *operators: str) -> None:
        while (token := self.peek()) and token.kind == "operator" and token.text in operators:
            self.at += 1

    def expect(self, *texts: str, line: int) -> Token:
        self.skip("\n", ";")
        token = self.peek()
        if token is None or not (token.is_plain(*texts) or token.text in texts):
            # Not where the text ends, but where what lacks its end begins.
            raise ShellError(
                f"{self.name}:{line} begins something that has no {' or '.join(texts)!r}.",
                fix=f"See whether the script is whole: bash -n {self.name}",
            )
        return self.take()

    def list_until(self, *ends: str) -> Nodes:
        nodes: list[Node] = []
        while True:
            self.skip("\n", ";", "&")
            token = self.peek()
            if token is None or token.is_plain(*ends) or token.text in ends:
                return tuple(nodes)
            before = self.at
            is_stray = token.is_plain(*_STRAY)
            if not is_stray:
                nodes.append(self.chain())
            if is_stray or self.at == before:  # a stray `done` or `)`
                raise ShellError(
                    f"{self.name}:{token.line} has {token.raw!r} where a command is expected.",
                    fix=f"See whether the script is whole: bash -n {self.name}",
                )

    def chain(self) -> Node:
        first = self.command()
        rest: list[tuple[str, Node]] = []
        while (token := self.peek()) and token.text in ("&&", "||", "|", "|&"):
            operator = self.take().text
            self.skip("\n")
            rest.append((operator, self.command()))
        return Chain(first.line, first, tuple(rest)) if rest else first

    def command(self) -> Node:
        token = self.peek()
        if token is None:
            return Simple(0, ())
        if token.is_plain("!"):
            self.take()
            return Not(token.line, self.command())
        for words, parse in (
            (("if",), self._if),
            (("for", "select"), self._for),
            (("while", "until"), self._while),
            (("case",), self._case),
            (("function",), self._function),
        ):
            if token.is_plain(*words):
                self.take()
                return parse(token.line)
        if token.is_plain("{"):
            return self._group(token.line, "}", is_subshell=False)
        if token.text == "(":
            return self._group(token.line, ")", is_subshell=True)
        return self._simple(token)

    def _group(self, line: int, end: str, *, is_subshell: bool) -> Node:
        self.take()
        body = self.list_until(end)
        self.expect(end, line=line)
        self._redirections()
        return Group(line, body, is_subshell)

    def _if(self, line: int) -> Node:
        branches: list[tuple[Nodes | None, Nodes]] = []
        while True:
            condition = self.list_until("then")
            self.expect("then", line=line)
            branches.append((condition, self.list_until("elif", "else", "fi")))
            word = self.expect("elif", "else", "fi", line=line)
            if word.is_plain("else"):
                branches.append((None, self.list_until("fi")))
                word = self.expect("fi", line=line)
            if word.is_plain("fi"):
                self._redirections()
                return If(line, tuple(branches))

    def _for(self, line: int) -> Node:
        words: list[Token] | None = None
        token = self.peek()
        name = token.raw if token else ""
        if token and token.text == "(":  # for ((i = 0; i < 3; i++))
            while (token := self.peek()) and not token.is_plain("do"):
                self.take()
        else:
            self.at += 1
            self.skip("\n")
            if (token := self.peek()) and token.is_plain("in"):
                self.take()
                words = []
                while (token := self.peek()) and token.kind == "word":
                    words.append(self.take())
        body = self._body(line)
        return For(line, name, None if words is None else tuple(words), body)

    def _body(self, line: int) -> Nodes:
        self.expect("do", line=line)
        body = self.list_until("done")
        self.expect("done", line=line)
        self._redirections()
        return body

    def _while(self, line: int) -> Node:
        condition = self.list_until("do")
        return Undecided(line, "a while loop", condition + self._body(line))

    def _case(self, line: int) -> Node:
        branches: list[tuple[tuple[Token, ...], Nodes]] = []
        word = self.take() if self.peek() else Token("word", line)
        self.skip("\n")
        self.expect("in", line=line)
        while True:
            self.skip("\n")
            token = self.peek()
            if token is None or token.is_plain("esac"):
                self.expect("esac", line=line)
                self._redirections()
                return Case(line, word, tuple(branches))
            patterns = []
            while (token := self.peek()) and token.text != ")":
                self.take()
                if token.kind == "word":
                    patterns.append(token)
            self.expect(")", line=line)
            branches.append((tuple(patterns), self.list_until(";;", "esac")))
            self.skip(";;")

    def _function(self, line: int) -> Node:
        name = self.take().raw if self.peek() else ""
        self.skip("(", ")", "\n")
        return Function(line, name, (self.command(),))

    def _redirections(self) -> None:
        while (token := self.peek()) and token.text in _REDIRECTIONS:
            self.take()
            if (token := self.peek()) and token.kind == "word":
                self.take()

    def _simple(self, first: Token) -> Node:
        words: list[Token] = []
        assignments: list[Assignment] = []
        is_test, is_redirected = first.is_plain("[["), False
        while token := self.peek():
            if token.text in _REDIRECTIONS and not is_test:
                self._redirections()
                is_redirected = True
                continue
            if token.kind == "operator":
                if len(words) == 1 and token.text == "(":
                    return self._function_after(words[0])
                if not is_test or token.text == "\n":
                    break
            self.take()
            assigned = None if words else _assignment(token)
            if assigned:
                assignments.append(assigned)
            else:
                words.append(token)
            if is_test and token.is_plain("]]"):
                break
        return Simple(first.line, tuple(words), tuple(assignments), is_test, is_redirected)

    def _function_after(self, name: Token) -> Node:
        self.skip("(", ")", "\n")
        return Function(name.line, name.raw, (self.command(),))


def _assignment(token: Token) -> Assignment | None:
    if token.kind == "array":
        found = _ASSIGNMENT.fullmatch(token.text)
        return Assignment(found[1], bool(found[2]), token) if found else None
    first = token.parts[0] if token.parts else None
    if first is None or first.kind != "text" or first.is_quoted:
        return None
    found = _ASSIGNMENT.match(first.text)
    if not found:
        return None
    left = first.text[found.end() :]
    parts = ((Part("text", left),) if left else ()) + token.parts[1:]
    return Assignment(found[1], bool(found[2]), Token("word", token.line, parts))


def parse(text: str, name: str) -> Nodes:
    """Return the commands of a script.

    Args:
        text: Of the script.
        name: Of its file, for errors.

    Raises:
        ShellError: A quote, a bracket or a block has no end.

    Example:
        >>> [command] = parse("./asr.sh --ngpu 1", "run.sh")
        >>> [word.raw for word in command.words]
        ['./asr.sh', '--ngpu', '1']
    """
    parser = _Parser(_Lexer(text, name).run(), name)
    try:
        return parser.list_until()
    except RecursionError:
        raise ShellError(f"{name} is nested too deeply to be read.", fix="Simplify it.") from None


def assignment_in(token: Token) -> Assignment | None:
    """Return what a word such as `name=value` behind `export` assigns."""
    return _assignment(token)


def parse_word(text: str, name: str) -> Token | None:
    """Return the word of a text such as the default in `${x:-...}`, where blanks do not end it."""
    tokens = _Lexer(text, name).run()
    if len(tokens) != 1 and '"' not in text:
        tokens = _Lexer(f'"{text}"', name).run()
    return tokens[0] if len(tokens) == 1 and tokens[0].kind == "word" else None
