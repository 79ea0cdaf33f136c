"""SQL file of a user job: temporary views, and one SELECT at the end.

Only its tokens are read here; the engine parses it. Statements keep their lines and columns, so that the engine's
messages name places in the file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

SUFFIX = ".sql"
EXPECTED = "`CREATE TEMPORARY VIEW name AS SELECT …;` any number of times, then one SELECT"
# Tables that Faultline creates.
RESERVED = ("records", "results")
# Columns of the last SELECT.
COLUMNS = ("key", "value")

_TOKEN = re.compile(
    r"""(?P<space>\s+) | (?P<comment>--[^\n]*|/\*.*?\*/) | (?P<literal>'(?:[^']|'')*') | (?P<name>`[^`]+`)
    | (?P<word>[^\W\d]\w*) | (?P<number>\d[\w.]*) | (?P<argument>(?<!:):[^\W\d]\w*) | (?P<unclosed>/\*|'|`)
    | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_DECLARATION = re.compile(r"--\s*(JOB\s*=.*)")


class SqlError(ValueError):
    """Invalid SQL file. `line`: where; None for the whole file."""

    def __init__(self, problem: str, line: int | None = None) -> None:
        super().__init__(problem)
        self.line = line


@dataclass(frozen=True)
class Token:
    """Part of the text. `kind`: a group of the pattern."""

    kind: str
    text: str
    line: int
    column: int

    @property
    def word(self) -> str:
        """The word in upper case; empty for other tokens."""
        return self.text.upper() if self.kind == "word" else ""


@dataclass(frozen=True)
class Statement:
    """Tokens from the first to the last one that is neither space nor comment."""

    tokens: tuple[Token, ...]

    @property
    def parts(self) -> tuple[Token, ...]:
        """Tokens without space and comments."""
        return tuple(one for one in self.tokens if one.kind not in ("space", "comment"))

    def text(self, arguments: Mapping[str, str | int | float] = MappingProxyType({})) -> str:
        """Return the statement at its line and column, with literals for its arguments."""
        first = self.tokens[0]
        pieces = (literal(arguments[one.text[1:]]) if one.kind == "argument" else one.text for one in self.tokens)
        return "\n" * (first.line - 1) + " " * first.column + "".join(pieces)


@dataclass(frozen=True)
class SqlFile:
    """Views by name in their order, the last SELECT, and line and text of the declaration."""

    views: Mapping[str, Statement]
    select: Statement
    declaration: tuple[int, str] | None

    def require_declared(self, names: Sequence[str]) -> None:
        """Raise SqlError for an argument in the text that is not among `names`."""
        for one in (token for statement in (*self.views.values(), self.select) for token in statement.parts):
            if one.kind == "argument" and one.text[1:] not in names:
                raise SqlError(f"got {one.text}; expected an argument that JOB declares", one.line)

    def statements(self, arguments: Mapping[str, str | int | float]) -> dict[str, object]:
        """Return the views and the SELECT as text, in the form that programs read."""
        views = {name: one.text(arguments) for name, one in self.views.items()}
        return {"views": views, "select": self.select.text(arguments)}


def read_sql(text: str) -> SqlFile:
    """Return the statements of a SQL file. Raises SqlError."""
    tokens = _tokens(text)
    declared = ((one.line, _DECLARATION.match(one.text)) for one in tokens if one.kind == "comment")
    found = _statements(tokens)
    if not found:
        raise SqlError(f"no SELECT at the end; expected {EXPECTED}")
    *before, last = found
    if last.parts[0].word not in ("SELECT", "WITH"):
        raise SqlError(f"no SELECT at the end; expected {EXPECTED}", last.parts[0].line)
    views: dict[str, Statement] = {}
    for one in before:
        name = _view_name(one)
        if name.lower() in (*RESERVED, *(known.lower() for known in views)):
            raise SqlError(f"got view {name}, a name in use; fix: rename it", one.parts[0].line)
        views[name] = one
    _require_columns(last)
    return SqlFile(views, last, next(((line, match[1]) for line, match in declared if match), None))


def literal(value: str | int | float) -> str:
    """Return a value as a SQL literal. Raises SqlError for a text that the engines would read differently."""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, str):
        if "\\" in value or not value.isprintable():
            raise SqlError(f"got {value!r}; expected one line without a backslash")
        return "'" + value.replace("'", "''") + "'"
    if not math.isfinite(value):
        raise SqlError(f"got {value}; expected a finite number")
    # A minus after another one would begin a comment.
    return f"({value})" if str(value).startswith("-") else str(value)


def _tokens(text: str) -> list[Token]:
    found = []
    line, begin = 1, 0
    for match in _TOKEN.finditer(text):
        one = Token(str(match.lastgroup), match[0], line, match.start() - begin)
        if one.kind == "unclosed":
            raise SqlError(f"got {one.text} without its end", line)
        if one.text == '"':
            raise SqlError("got a double quote; expected 'text' or `name`", line)
        if one.kind == "literal" and "\\" in one.text:
            raise SqlError(
                f"got a backslash in {one.text}, which engines read differently; fix: use [.] or [0-9]", line
            )
        found.append(one)
        if "\n" in one.text:
            line, begin = line + one.text.count("\n"), match.start() + one.text.rindex("\n") + 1
    return found


def _statements(tokens: Sequence[Token]) -> list[Statement]:
    found: list[Statement] = []
    part: list[Token] = []
    for one in (*tokens, Token("other", ";", 0, 0)):
        if one.text != ";":
            part.append(one)
            continue
        own = [place for place, token in enumerate(part) if token.kind not in ("space", "comment")]
        if own:
            found.append(Statement(tuple(part[own[0] : own[-1] + 1])))
        part = []
    return found


def _view_name(statement: Statement) -> str:
    parts = statement.parts
    head = " ".join(one.word for one in parts[:3])
    if head != "CREATE TEMPORARY VIEW" or len(parts) < 5 or not (parts[4].word == "AS" or parts[4].text == "("):
        start = " ".join(one.text for one in parts[:4])
        raise SqlError(f"got {start!r}; expected {EXPECTED}", parts[0].line)
    return parts[3].text.strip("`")


def _require_columns(select: Statement) -> None:
    """Raise SqlError if the SELECT cannot return the columns: it names neither them nor all columns of a table."""
    parts = select.parts
    names = {one.text.strip("`").lower() for one in parts if one.kind in ("word", "name")}
    for before, one in zip(parts, parts[1:], strict=False):
        if one.text == "*" and (before.word in ("SELECT", "DISTINCT") or before.text in (",", ".")):
            return
    for name in COLUMNS:
        if name not in names:
            raise SqlError(f"the last SELECT has no column {name}; expected … AS `key`, … AS `value`", parts[0].line)
