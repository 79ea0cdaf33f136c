"""Scanner for banned words in names, docstrings, comments, messages and documents.

python tests/static/vocabulary.py [FILE …]    prints each hit as FILE:LINE: KIND: WORD: TEXT
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]

BANNED: Final = re.compile(
    r"""
    \b(told|tells?|said)\b
    | \b(no|some|any|every)body\b | \bwho(so)?ever\b
    | \b(he|him|his|himself)\b
    | \banew\b | \b(goes|go|going)[ ]on\b
    | \b(is|are|was)[ ]away\b
    | \bbesides?\b | \bbut[ ]for\b
    | \bmend(s|ed|ing)?\b
    | (?<!there[ ])\bis[ ]no[ ](?!longer|more|less|better|worse)
    | \bso[ ](many|much|long)\b(?![ ](as|that)\b)
    | \bheld[ ]against\b | \bhangs?[ ]on\b
    | \bby[ ]lot\b | \btimes[ ]in[ ]five\b
    | \b(strangers?|guests?)\b(?![ ](cpu|time))
    | \bdead[ ]m[ae]n\b | \blast[ ]words\b | \b(spark|one)[ ]that[ ]stays\b
    | \bnights?\b
    | \bforg[eo]t(s|ten)?\b | \bover[ ]and[ ]over\b | \btill\b | \bin[ ]vain\b
    | \b(in|at)[ ]work\b | \bof[ ](others|ours)\b
    | (?-i:(?:^|[.;][ ])Of[ ](?!course))
    """,
    re.IGNORECASE | re.VERBOSE,
)
NAME_PARTS: Final = frozenset(
    "told tell tells said says nobody somebody everybody anybody whoever anew beside besides stranger guest hands deed "
    "happening wish promise mend heard pretender night".split()
)
# Banned first words of a docstring, which starts with a noun phrase or an imperative verb.
OPENINGS: Final = re.compile(r"(What|Who|Whoever|How|Where|So|Of)\b")
# Files that list the banned words and are not scanned.
LISTS: Final = ("tests/static/vocabulary.py", "tests/static/test_vocabulary.py")
CODE: Final = ("include", "dags", "plugins", "fault", "generators", "spark_jobs", "scripts", "benchmarks", "tests")


class Hit(NamedTuple):
    """A banned word, with its position, kind of text and line."""

    file: str
    line: int
    kind: str
    word: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.kind}: {self.word}: {self.text[:150]}"


def hits_of(file: str) -> list[Hit]:
    """Return the hits of a Python or Markdown file, named relative to the root."""
    text = (ROOT / file).read_text(encoding="utf-8")
    found = _code_hits(file, text) if file.endswith(".py") else _document_hits(file, text)
    return sorted(set(found), key=lambda hit: (hit.line, hit.word))


def files() -> list[str]:
    """Return all scanned files: Python sources and hand-written Markdown."""
    command = ["git", "ls-files", "-co", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [name for name in listed if (ROOT / name).is_file() and _is_scanned(name)]


def _is_scanned(name: str) -> bool:
    if name.endswith(".py"):
        return name.split("/")[0] in CODE and name not in LISTS
    return name.endswith(".md") and not name.startswith("docs/results/") and name != "CHANGELOG.md"


def _code_hits(file: str, text: str) -> Iterator[Hit]:
    tree, lines = ast.parse(text), text.splitlines()
    docstrings = {id(node): node for node in map(_docstring_of, ast.walk(tree)) if node is not None}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) in docstrings:
                yield from text_hits(file, node.lineno, "docstring", node.value)
                if opening := OPENINGS.match(node.value):
                    yield Hit(file, node.lineno, "opening", opening.group(), node.value.splitlines()[0])
            elif " " in node.value:
                yield from text_hits(file, node.lineno, "message", node.value)
        for name in _names_of(node):
            if NAME_PARTS & {part.lower() for part in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)}:
                yield Hit(file, node.lineno, "name", name, lines[node.lineno - 1].strip())
    for block in _comments_of(text):
        yield from text_hits(file, block[0][0], "comment", "\n".join(words for _, words in block))


def _docstring_of(node: ast.AST) -> ast.Constant | None:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        match node.body:
            case [ast.Expr(value=ast.Constant(value=str()) as text), *_]:
                return text
    return None


def _comments_of(text: str) -> list[list[tuple[int, str]]]:
    """Return the comments as blocks of (line, text); consecutive comment lines form one block."""
    blocks: list[list[tuple[int, str]]] = []
    own = False
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            alone = token.line.lstrip().startswith("#")
            if not (own and alone and blocks[-1][-1][0] == token.start[0] - 1):
                blocks.append([])
            blocks[-1].append((token.start[0], token.string.lstrip("# ")))
            own = alone
    return blocks


def _names_of(node: ast.AST) -> list[str]:
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.arg(arg=name):
            return [name]
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            return [name]
        case ast.alias(asname=str(name)):
            return [name]
    return []


def text_hits(file: str, line: int, kind: str, text: str) -> Iterator[Hit]:
    plain = re.sub(r"`+[^`]*`+|\"[^\"\n]*\"", lambda m: re.sub(r"[^\n]", "x", m.group()), text)
    joined = re.sub(r"\s", " ", plain)
    for match in BANNED.finditer(joined):
        at = plain.count("\n", 0, match.start() + (len(match.group()) - len(match.group().lstrip(" .;"))))
        yield Hit(file, line + at, kind, match.group().strip(" .;").lower(), text.splitlines()[at].strip())


def _document_hits(file: str, text: str) -> Iterator[Hit]:
    text = re.sub(r"^(```|~~~).*?^\1", lambda m: "\n" * m.group().count("\n"), text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"\]\([^)\s]*\)", lambda m: "]", text)
    line = 1
    for paragraph in re.split(r"(\n(?:\s*\n)+)", text):
        if paragraph.strip():
            yield from text_hits(file, line, "document", paragraph)
        line += paragraph.count("\n")


if __name__ == "__main__":
    for name in sys.argv[1:] or files():
        for hit in hits_of(name):
            print(hit)
