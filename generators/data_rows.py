"""Records of a user's file as they are sent, and where their columns stand in them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

# Where a field stands in its record: its first byte, and the one after its last.
Span = tuple[int, int]
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)
_CSV_FIELD = re.compile(rb'"(?:[^"]|"")*"|[^,]*')


@dataclass(slots=True)
class Row:
    """One record of a file, as it is sent. A line of text has no columns."""

    where: str
    value: bytes

    def spans(self) -> dict[str, list[Span]]:
        """By column, all places where it stands: an object of JSON may repeat one, and the last one counts."""
        return {}

    def text(self, span: Span) -> bytes | None:
        """What stands there, as a key: a text without its quotes and escapes, anything else as it is written."""
        return self.value[slice(*span)]


class JsonRow(Row):
    def spans(self) -> dict[str, list[Span]]:
        found: dict[str, list[Span]] = {}
        depth, name, start, end = 0, None, -1, -1
        for token in _TOKEN.finditer(self.value):
            text = token[0]
            depth -= text in (b"}", b"]")
            if name is not None and (depth, text) in ((1, b","), (0, b"}")):
                found.setdefault(name, []).append((start, end))
                name, start = None, -1
            elif name is None and depth == 1 and text[:1] == b'"':
                name = str(json.loads(text))
            elif name is not None and not (start < 0 and text == b":"):
                start, end = token.start() if start < 0 else start, token.end()
            depth += text in (b"{", b"[")
        return found

    def text(self, span: Span) -> bytes | None:
        written = self.value[slice(*span)]
        if written == b"null":
            return None
        return str(json.loads(written)).encode() if written[:1] == b'"' else written


@dataclass(slots=True)
class CsvRow(Row):
    names: Sequence[str]

    def spans(self) -> dict[str, list[Span]]:
        found, at = {}, 0
        for name in self.names:
            match = _CSV_FIELD.match(self.value, at)
            assert match is not None
            found[name] = [match.span()]
            at = match.end() + 1
        return found

    def text(self, span: Span) -> bytes | None:
        written = self.value[slice(*span)]
        return written[1:-1].replace(b'""', b'"') if written[:1] == b'"' else written
