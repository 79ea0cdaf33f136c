"""Selected experiments as one table for spreadsheets and notebooks.

There is one row per record. Columns are the identity, `config_…`, figures by key, and reasons; unknown values are
empty.

Spreadsheets evaluate CSV cells that begin like a formula, and formulas may run programs and open addresses. Such texts
get a leading apostrophe in CSV, which marks them as text; Parquet keeps them unchanged.
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
# Texts that begin like a formula. `spark_jobs/aggregate.py` has a copy, because it imports no project module; a test
# compares both.
FORMULA = r"^(?:[\t\r\n]|\s*[=+\-@" "\uff1d\uff0b\uff0d\uff20])"
NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?(?![\s\S])"
_FORMULA, _NUMBER = (re.compile(pattern, re.ASCII) for pattern in (FORMULA, NUMBER))


def table_of(entries: Sequence[IndexEntry]) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the column names, and one row per record by column name."""
    rows = [_row(entry) for entry in entries]
    names = dict.fromkeys(name for row in rows for name in row)
    names.pop("reasons", None)
    return [*names, "reasons"], rows


def as_csv(entries: Sequence[IndexEntry]) -> bytes:
    """Return the table as UTF-8 CSV with a header line."""
    names, rows = table_of(entries)
    text = io.StringIO(newline="")
    # `\r\n` makes the writer quote texts with a lone `\r` or `\n`, which would otherwise start a row.
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow(map(as_cell, names))
    writer.writerows([as_cell(row.get(name, "")) for name in names] for row in rows)
    return text.getvalue().encode("utf-8")


def as_cell(value: Any) -> Any:
    """Return a CSV cell: text that begins like a formula, unless numeric, gets a leading apostrophe."""
    formula = isinstance(value, str) and _FORMULA.match(value) and not _NUMBER.match(value)
    return f"'{value}" if formula else value


def as_parquet(entries: Sequence[IndexEntry]) -> bytes:
    """Return the table as Parquet; a column has the narrowest type of its values: bool, int64, float64 or string."""
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
    """Return the name of the narrowest Arrow type of all values; `empty` without values."""
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
