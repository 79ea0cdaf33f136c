"""Records of user files: their bytes, the positions of columns, and their times."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Literal

# First byte of a field, and the byte after its last.
Span = tuple[int, int]
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)
_CSV_FIELD = re.compile(rb'"(?:[^"]|"")*"|[^,]*')


@dataclass(slots=True)
class DataRow:
    """One record of a file, byte for byte; a text line has no columns."""

    where: str
    value: bytes

    def spans(self) -> dict[str, list[Span]]:
        """Return all positions by column: a JSON object may repeat a key, and the last one counts."""
        return {}

    def text(self, span: Span) -> bytes | None:
        """Return a field as a key: strings without quotes and escapes, other values as they are written."""
        return self.value[slice(*span)]


class JsonRow(DataRow):
    """One JSON object."""

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
class CsvRow(DataRow):
    """One CSV row."""

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


# Times in user records: parsed, and shifted in place without a change of form.
#
# A time is a number since the epoch, with a given unit or one from its magnitude, or an ISO 8601 text: a date,
# optionally with a time of day to any precision, up to nine fractional digits, and an offset (default UTC). A shifted
# time keeps separators, offset and number of digits.


Unit = Literal["s", "ms", "us", "ns"]
# Nanoseconds of each unit.
UNITS: dict[Unit, int] = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
# Upper limit of each unit: with the previous unit the time would be beyond the year 5138.
_MAGNITUDES: tuple[tuple[Unit, float], ...] = (("s", 1e11), ("ms", 1e14), ("us", 1e17), ("ns", float("inf")))
NS_PER_MS = 10**6
_EPOCH = datetime(1970, 1, 1)
_LATEST_NS = (datetime.max - _EPOCH) // timedelta(microseconds=1) * 1000
# Lengths of a date with time of day written as digits only.
_DIGITS = (8, 12, 14)

_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?(?:([eE])([+-]?\d+))?")
_ISO = re.compile(
    r"(\d{4})(-?)(\d\d)\2(\d\d)"
    r"(?:([Tt ]?)(\d\d)(?:(:?)(\d\d)(?:\7(\d\d)(?:([.,])(\d{1,9}))?)?)?( ?[Zz]| ?[+-]\d\d(?::?\d\d(?::?\d\d)?)?)?)?"
)


class InvalidTimeError(ValueError):
    """A value that is not a time; the message names the expected form."""


@dataclass(frozen=True)
class Time:
    """A time in a record; it can be shifted by multiples of `resolution_ns`."""

    ns: int  # since the epoch
    resolution_ns: int
    unit: Unit | None = None  # of a number


def unit_of(number: Decimal) -> Unit:
    """Return the unit of a number since the epoch, from its magnitude."""
    return next(unit for unit, most in _MAGNITUDES if abs(number) < most)


def text_of(field: bytes) -> str:
    """Return a JSON or CSV field without quotes and surrounding white space."""
    if field[:1] != b'"':
        return field.decode().strip()
    text = field[1:-1].decode()
    if "\\" in text:
        with contextlib.suppress(ValueError):  # in CSV a backslash has no meaning
            text = str(json.loads(field))
    return text.strip()


def read_time(field: bytes, unit: Unit | None = None) -> Time:
    """Return the time of a field as written in its record, quotes included. Raises InvalidTimeError."""
    text = text_of(field)
    if unit is None and (iso := _Iso.parse(text)) is not None:
        return Time(iso.ns, iso.resolution_ns)
    if _NUMBER.fullmatch(text) is None:
        raise InvalidTimeError(
            "expected a number since 1970, or a text such as 2026-11-25T12:00:00Z"
            if unit is None
            else f"expected a number of {unit}; fix: correct or remove data_time_unit"
        )
    number = Decimal(text)
    unit = unit or unit_of(number)
    if abs(number) * UNITS[unit] > _LATEST_NS:
        raise InvalidTimeError("expected a time before the year 10000; fix: check data_time_unit")
    # Fractions may need more digits; whole numbers stay whole.
    return Time(round(number * UNITS[unit]), UNITS[unit] if text.lstrip("+-").isdigit() else 1, unit)


def shift_time(field: bytes, by_ns: int, unit: Unit | None = None) -> bytes:
    """Return the field shifted by `by_ns`, a multiple of its resolution; `unit` as in `Time`."""
    text = text_of(field)
    iso = _Iso.parse(text) if unit is None else None
    later = _shift_number(text, by_ns, unit or "s") if iso is None else iso.shift(by_ns)
    # A JSON string loses its escapes; surrounding white space stays.
    return field.replace(text.encode(), later.encode(), 1) if text.encode() in field else json.dumps(later).encode()


def _shift_number(text: str, by_ns: int, unit: Unit) -> str:
    found = _NUMBER.fullmatch(text)
    assert found is not None
    later, digits = Decimal(text) + Decimal(by_ns) / UNITS[unit], len(found[1] or ".") - 1
    if found[2]:
        later = later.scaleb(-int(found[3]))
    digits = max(digits, -int(later.normalize().as_tuple().exponent))
    sign = "+" if text.startswith("+") else ""
    return f"{sign}{later:.{digits}f}" + (f"{found[2]}{found[3]}" if found[2] else "")


@dataclass(frozen=True)
class _Iso:
    """A parsed ISO 8601 text."""

    found: re.Match[str]
    local: datetime  # whole seconds, without offset
    fraction_ns: int

    @classmethod
    def parse(cls, text: str) -> _Iso | None:
        found = _ISO.fullmatch(text)
        if found is None:
            return None
        year, dash, month, day, separator, hour, _, minute, second, _, fraction, _ = found.groups()
        # Digits alone count as a date if that is plausible, else as a number: 1701010100 is in 2023, not in 1701.
        if hour and not separator and (dash or len(text) not in _DIGITS or not "1900" <= year < "2200"):
            return None
        try:
            local = datetime(int(year), int(month), int(day), int(hour or 0), int(minute or 0), int(second or 0))
        except ValueError:
            return None
        return cls(found, local, int((fraction or "0").ljust(9, "0")))

    @property
    def ns(self) -> int:
        offset = re.sub("[ Zz:]", "", self.found[12] or "")
        parts = [int(offset[at : at + 2]) for at in range(1, len(offset), 2)]
        seconds = sum(part * 60**power for part, power in zip(parts, (2, 1, 0), strict=False))
        after = (self.local - _EPOCH) // timedelta(seconds=1) - (-seconds if offset[:1] == "-" else seconds)
        return int(after) * 10**9 + self.fraction_ns

    @property
    def resolution_ns(self) -> int:
        hour, minute, second, fraction = (self.found[group] for group in (6, 8, 9, 11))
        if fraction:
            return int(10 ** (9 - len(fraction)))
        return 10**9 * (1 if second else 60 if minute else 3600 if hour else 86_400)

    def shift(self, by_ns: int) -> str:
        """Return the shifted time in the same form. Raises OverflowError beyond the year 9999."""
        seconds, rest = divmod(self.fraction_ns + by_ns, 10**9)
        later = self.local + timedelta(seconds=seconds)
        _, dash, _, _, separator, hour, colon, minute, second, point, fraction, offset = self.found.groups()
        text = f"{later.year:04}{dash}{later.month:02}{dash}{later.day:02}"
        text += f"{separator}{later.hour:02}" if hour else ""
        text += f"{colon}{later.minute:02}" if minute else ""
        text += f"{colon}{later.second:02}" if second else ""
        text += f"{point}{rest:09}"[: 1 + len(fraction)] if fraction else ""
        return text + (offset or "")
