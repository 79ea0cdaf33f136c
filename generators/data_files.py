"""Data of the user's, read from files: JSON lines, CSV, Parquet, text, and topics that were recorded.

What is broken is named with its file and line (of Parquet, its row). All of it is held in memory, so what does not fit
is refused: at once when its files are too large, else as soon as what was read takes too much. How much that is depends
on the form: plain lines take about twice their bytes, lines of CSV whose times are to be moved thirty-four times, and a
column of equal values in Parquet any multiple.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from generators.errors import InputError

TEXT, LINES, CSV, PARQUET = ".txt", ".jsonl", ".csv", ".parquet"
SUFFIXES = (LINES, CSV, PARQUET, TEXT)
# The columns of a topic that was recorded.
RECORDED = ("partition", "offset", "timestamp_ms", "key", "value", "headers")
# Of the memory that is free, what data may take, in all processes that hold it.
SHARE_OF_MEMORY = 0.5
# Rows between two looks at how much it takes.
ROWS_A_LOOK = 250
# From here on a number is milliseconds since the epoch, not seconds: in seconds it would lie in the year 5138.
FIRST_MS = 1e11

Headers = list[tuple[str, bytes]]
# A record's value with its event time moved by so many milliseconds.
Shift = Callable[[int, int], bytes]
T = TypeVar("T")


@dataclass
class Data:
    """Records in the order of their files. Lists of one length, or empty where no record has any.

    `times_ms`: milliseconds since the epoch. `shift(i, ms)`: the value of record i with its event time moved; None
    where values carry none.
    """

    values: list[bytes] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    headers: list[Headers] = field(default_factory=list)
    times_ms: list[int] = field(default_factory=list)
    shift: Shift | None = None

    def __len__(self) -> int:
        return len(self.values)


def data_files(path: str) -> list[Path]:
    """The files of the data, by name. Raises InputError for nothing, and for several kinds."""
    place = Path(path)
    if place.is_dir():
        files = sorted(one for one in place.iterdir() if one.suffix in SUFFIXES and one.is_file())
    else:
        files = [place] if place.is_file() else []
    if not files:
        known = ", ".join(SUFFIXES)
        raise InputError(f"data: {path} is no file and holds none that ends in {known}; name one, or a folder of them")
    kinds = sorted({one.suffix for one in files})
    if len(kinds) > 1:
        raise InputError(f"data: {path} holds {' and '.join(kinds)}; keep files of one kind there")
    if kinds[0] not in SUFFIXES:
        raise InputError(f"data: {path} ends in {kinds[0] or 'nothing'}; use {', '.join(SUFFIXES)}")
    return files


class Room:
    """The memory that data has."""

    def __init__(self, path: str, copies: int) -> None:
        """`copies`: how many processes hold the data."""
        import psutil  # like pyarrow below: a generator without data does not load it

        self._path, self._before = path, taken()
        self._most = int(psutil.virtual_memory().available * SHARE_OF_MEMORY / copies)

    def require(self, files: Sequence[Path]) -> None:
        """Raises InputError for files that are larger than what there is."""
        size = sum(map(_size, files))
        if size > self._most:
            raise self._refusal(f"has {size / 1e6:,.0f} MB")

    def look(self, where: str) -> None:
        """Raises InputError when what was read up to `where` takes more than there is."""
        size = taken() - self._before
        if size > self._most:
            raise self._refusal(f"takes {size / 1e6:,.0f} MB of memory up to {where}")

    def watched(self, rows: Iterator[T], where: Callable[[T], str]) -> Iterator[T]:
        """The same rows, with a look now and then."""
        for number, row in enumerate(rows, start=1):
            if number % ROWS_A_LOOK == 0:
                self.look(where(row))
            yield row

    def _refusal(self, what: str) -> InputError:
        return InputError(
            f"data: {self._path} {what}, and {self._most / 1e6:,.0f} MB are left for it in this machine's memory; give "
            "a part of it, which is replayed over and over"
        )


def taken() -> int:
    """Bytes of memory that this process has."""
    import psutil

    return int(psutil.Process().memory_info().rss)


def read_data(path: str, key: str | None = None, time: str | None = None, *, copies: int = 1) -> Data:
    """The records of a file or folder. `key`, `time`: columns that hold each record's key and time. `copies`: how many
    processes are to hold them, this one included.

    Raises InputError naming file and line, also of what does not fit into memory. Kept as long as nothing changes,
    since a generator asks more than once.
    """
    files = tuple(data_files(path))
    return _read(path, files, tuple(file.stat().st_mtime_ns for file in files), key, time, copies)


@lru_cache(maxsize=1)
def _read(
    path: str, files: tuple[Path, ...], changed_ns: tuple[int, ...], key: str | None, time: str | None, copies: int
) -> Data:
    suffix, room = files[0].suffix, Room(path, copies)
    room.require(files)
    if suffix == PARQUET and _is_recorded(files[0]):
        for name, given in (("data_key", key), ("data_time", time)):
            if given:
                raise InputError(f"{name}: {path} is a topic that was recorded, with keys and times; leave it empty")
        return _recorded(files, room)
    if suffix == TEXT:
        for name, given in (("data_key", key), ("data_time", time)):
            if given:
                raise InputError(f"{name}: lines of text have no columns; leave it empty")
        data = Data(values=[value for file in files for value in _texts(file, room)])
    else:
        data = _with_columns(room.watched(_rows(files, suffix), lambda row: row.where), key, time)
    if not len(data):
        raise InputError(f"data: {path} holds no record; fill it")
    return data


def require_forward(data: Data, path: str) -> None:
    """Raises InputError naming the first record whose time lies before the one before it."""
    if not data.times_ms:
        raise InputError(f"data_time: {path} has no times to replay; name the column that holds them")
    for number, (before, after) in enumerate(zip(data.times_ms, data.times_ms[1:], strict=False), start=2):
        if after < before:
            raise InputError(
                f"data: {path}, record {number}: its time {_iso(after)} lies before that of the record before it "
                f"({_iso(before)}); sort it, or replay it at a rate (data_pace=rate)"
            )


@dataclass(slots=True)
class _Row:
    """One record of a file with columns: how it is sent, what it holds, and how it is written with other columns."""

    where: str
    value: bytes
    columns: dict[str, Any]
    write: Callable[[dict[str, Any]], bytes]


def _with_columns(rows: Iterator[_Row], key: str | None, time: str | None) -> Data:
    data, kept = Data(), list[tuple[dict[str, Any], Callable[[dict[str, Any]], bytes]]]()
    for row in rows:
        for name, column in (("data_key", key), ("data_time", time)):
            if column and column not in row.columns:
                raise InputError(f"{name}: {row.where} has no {column}; it has {', '.join(row.columns)}")
        data.values.append(row.value)
        if key:
            data.keys.append(None if row.columns[key] is None else str(row.columns[key]).encode())
        if time:
            data.times_ms.append(_time_ms(row.columns[time], f"{row.where}: {time}"))
            kept.append((row.columns, row.write))
    if time:

        def shift(number: int, by_ms: int) -> bytes:
            columns, write = kept[number]
            return write({**columns, time: _moved(columns[time], by_ms)})

        data.shift = shift
    return data


def _texts(file: Path, room: Room) -> Iterator[bytes]:
    for _, line in room.watched(_lines(file), lambda found: f"{file}, line {found[0]}"):
        yield line


def _rows(files: Sequence[Path], suffix: str) -> Iterator[_Row]:
    for file in files:
        yield from {LINES: _json_rows, CSV: _csv_rows, PARQUET: _parquet_rows}[suffix](file)


def _json_rows(file: Path) -> Iterator[_Row]:
    for number, line in _lines(file):
        where = f"{file}, line {number}"
        try:
            columns = json.loads(line)
        except ValueError as error:
            raise InputError(f"data: {where}: no JSON ({error}); mend or leave out the line") from None
        if not isinstance(columns, dict):
            raise InputError(f"data: {where}: no JSON object; write {{…}} on each line")
        yield _Row(where, line, columns, _as_json)


def _csv_rows(file: Path) -> Iterator[_Row]:
    """A line for each record, without the first one, which names the columns."""
    lines = _lines(file)
    header = next(lines, None)
    if header is None:
        return
    names = next(csv.reader([header[1].decode()]))

    def write(columns: dict[str, Any]) -> bytes:
        text = io.StringIO()
        csv.writer(text, lineterminator="").writerow([columns[name] for name in names])
        return text.getvalue().encode()

    for number, line in lines:
        try:
            fields = next(csv.reader([line.decode()]))
        except csv.Error as error:
            raise InputError(f"data: {file}, line {number}: no CSV ({error}); mend or leave out the line") from None
        if len(fields) != len(names):
            raise InputError(
                f"data: {file}, line {number}: {len(fields)} columns, and the first line names {len(names)}; mend it"
            )
        yield _Row(f"{file}, line {number}", line, dict(zip(names, fields, strict=True)), write)


def _parquet_rows(file: Path) -> Iterator[_Row]:
    """A JSON object for each row."""
    import pyarrow.parquet as pq

    number = 0
    try:
        for batch in pq.ParquetFile(file).iter_batches(ROWS_A_LOOK):
            for columns in batch.to_pylist():
                number += 1
                yield _Row(f"{file}, row {number}", _as_json(columns), columns, _as_json)
    except OSError as error:
        raise InputError(f"data: {file}, after row {number}: cannot be read: {error}") from None


def _recorded(files: Sequence[Path], room: Room) -> Data:
    import pyarrow.parquet as pq

    data, rows = Data(), list[dict[str, Any]]()
    for file in files:
        try:
            for batch in pq.ParquetFile(file).iter_batches(ROWS_A_LOOK, columns=list(RECORDED)):
                rows += batch.to_pylist()
                room.look(f"{file}, row {len(rows)}")
        except OSError as error:
            raise InputError(f"data: {file}: cannot be read: {error}") from None
    for row in sorted(rows, key=lambda row: (row["timestamp_ms"], row["partition"], row["offset"])):
        data.values.append(row["value"] or b"")
        data.keys.append(row["key"])
        data.headers.append([(one["name"], one["value"] or b"") for one in row["headers"] or ()])
        data.times_ms.append(int(row["timestamp_ms"]))
    return data


def _is_recorded(file: Path) -> bool:
    import pyarrow.parquet as pq

    try:
        return set(RECORDED) <= set(pq.read_schema(file).names)
    except (OSError, ValueError) as error:
        raise InputError(f"data: {file}: is no Parquet file ({error}); mend it") from None


def _size(file: Path) -> int:
    """Bytes that the file has, unpacked."""
    if file.suffix != PARQUET:
        return file.stat().st_size
    import pyarrow.parquet as pq

    try:
        about = pq.read_metadata(file)
    except (OSError, ValueError) as error:
        raise InputError(f"data: {file}: is no Parquet file ({error}); mend it") from None
    return sum(about.row_group(number).total_byte_size for number in range(about.num_row_groups))


def _lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """Number and content of each line that is not empty."""
    try:
        with file.open("rb") as content:
            for number, raw in enumerate(content, start=1):
                line = raw.rstrip(b"\r\n")
                if number == 1:
                    line = line.removeprefix(b"\xef\xbb\xbf")
                try:
                    line.decode()
                except UnicodeDecodeError as error:
                    raise InputError(
                        f"data: {file}, line {number}: not UTF-8 ({error.reason}); convert the file to UTF-8"
                    ) from None
                if line.strip():
                    yield number, line
    except OSError as error:
        raise InputError(f"data: {file}: cannot be read: {error.strerror}") from None


def _as_json(columns: dict[str, Any]) -> bytes:
    return json.dumps(columns, default=_plain, ensure_ascii=False, separators=(",", ":")).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise InputError("data: a column holds bytes that are no text; leave it out, or record a topic") from None
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _time_ms(value: Any, where: str) -> int:
    """Milliseconds since the epoch of a number (seconds, or milliseconds), or of a text."""
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    if isinstance(value, datetime):
        return round((value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp() * 1000)
    try:
        return _number_ms(float(value))
    except (TypeError, ValueError, OverflowError):
        pass
    try:
        return _time_ms(datetime.fromisoformat(str(value)), where)
    except ValueError:
        raise InputError(
            f"data: {where} is {value!r}, which is no time; write seconds or milliseconds since 1970, or "
            "2026-11-25T12:00:00Z"
        ) from None


def _number_ms(value: float) -> int:
    return round(value if abs(value) >= FIRST_MS else value * 1000)


def _moved(value: Any, by_ms: int) -> Any:
    """The time in the form that it had, so much later."""
    if isinstance(value, date):
        whole_day = not isinstance(value, datetime)
        return (datetime(value.year, value.month, value.day) if whole_day else value) + timedelta(milliseconds=by_ms)
    try:
        number = float(value)
    except ValueError:
        text = str(value)
        moved = datetime.fromisoformat(text) + timedelta(milliseconds=by_ms)
        digits = len(text.partition(".")[2].rstrip("Z").partition("+")[0].partition("-")[0])
        exact = "microseconds" if digits > 3 else "milliseconds" if digits or moved.microsecond else "seconds"
        told = moved.isoformat(sep="T" if "T" in text else " ", timespec=exact)
        return told.replace("+00:00", "Z") if text.endswith("Z") else told
    step = by_ms if abs(number) >= FIRST_MS else by_ms / 1000
    later = number + step
    whole = isinstance(value, int) or (isinstance(value, str) and value.lstrip("+-").isdigit())
    later = round(later) if whole and later == round(later) else later
    return str(later) if isinstance(value, str) else later


def _iso(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
