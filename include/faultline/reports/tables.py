"""The experiments of a selection as one table, for spreadsheets and notebooks.

One row a record. Columns are named as in the summary tables: what identifies it, `config_…`, figures by their path, and
the reasons. Missing is empty.

A spreadsheet computes a cell of CSV that begins like a formula, and formulas may call programs and addresses. So a text
that begins like one has an apostrophe before it, which says that it is text; Parquet has it as it is.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from faultline.records.catalogue import KNOWN, columns_in
from faultline.records.columns import Sheet
from faultline.records.index_entry import IndexEntry

_IDENTITY = {column.key: column for column in columns_in(Sheet.EXPORT)}
# `spark_jobs/aggregate.py`, which imports nothing of ours, has the same two; a test holds one against the other.
FORMULA = r"^(?:[\t\r\n]|\s*[=+\-@" "\uff1d\uff0b\uff0d\uff20])"
NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?(?![\s\S])"
_FORMULA, _NUMBER = (re.compile(pattern, re.ASCII) for pattern in (FORMULA, NUMBER))


def table_of(entries: Sequence[IndexEntry]) -> tuple[list[str], list[dict[str, Any]]]:
    """Column names, and a row by column name for each record."""
    rows = [_row(entry) for entry in entries]
    names = dict.fromkeys(name for row in rows for name in row)
    names.pop("reasons", None)
    return [*names, "reasons"], rows


def as_csv(entries: Sequence[IndexEntry]) -> bytes:
    """The table as CSV in UTF-8 with a header line."""
    names, rows = table_of(entries)
    text = io.StringIO(newline="")
    # A text is quoted for each character of what ends a line; a bare one would begin a row, and what follows a cell.
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow(map(as_cell, names))
    writer.writerows([as_cell(row.get(name, "")) for name in names] for row in rows)
    return text.getvalue().encode("utf-8")


def as_cell(value: Any) -> Any:
    """A value as a cell of CSV: a text that begins like a formula, and is no number, after an apostrophe."""
    formula = isinstance(value, str) and _FORMULA.match(value) and not _NUMBER.match(value)
    return f"'{value}" if formula else value


def as_parquet(entries: Sequence[IndexEntry]) -> bytes:
    """The table as Parquet; a column holds truth values, whole numbers, numbers or text, as all its values are."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names, rows = table_of(entries)
    columns = {}
    for name in names:
        values = [row.get(name) for row in rows]
        kind = _kind(values, empty="string" if name in _IDENTITY else "float64")
        columns[name] = pa.array([_converted(kind, value) for value in values], getattr(pa, kind)())
    target = io.BytesIO()
    pq.write_table(pa.table(columns), target)
    return target.getvalue()


def _row(entry: IndexEntry) -> dict[str, Any]:
    computed = {one.key: value for one in KNOWN if one.read and (value := one.value(entry)) is not None}
    return {
        **{name: column.value(entry) for name, column in _IDENTITY.items()},
        **{f"config_{name}": _plain(value) for name, value in entry.config.items()},
        **{name.replace(".", "_"): value for name, value in {**entry.metrics, **computed}.items()},
        "reasons": "; ".join(entry.reasons),
    }


def _plain(value: Any) -> Any:
    return json.dumps(value, sort_keys=True) if isinstance(value, Mapping | list) else value


def _kind(values: Sequence[Any], *, empty: str) -> str:
    """Name of the narrowest Arrow type that holds them all; `empty` where nothing is known."""
    known = [value for value in values if value is not None]
    if not known:
        return empty
    if all(isinstance(value, bool) for value in known):
        return "bool_"
    if any(isinstance(value, bool | str) for value in known):
        return "string"
    whole = all(isinstance(value, int) and abs(value) < 2**63 for value in known)
    return "int64" if whole else "float64"


def _converted(kind: str, value: Any) -> Any:
    if value is None:
        return None
    if kind == "string":
        return value if isinstance(value, str) else json.dumps(value)
    return float(value) if kind == "float64" else value
