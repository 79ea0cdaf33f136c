"""Column of the catalogue: key, name, unit, tables and text of its values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Any

from faultline.records.format import NONE, cores, count, milliseconds, plain, seconds, share
from faultline.records.index_entry import IndexEntry

LESS, MORE = "less", "more"


class Sheet(Enum):
    """Tables that a column may appear in."""

    RUNS = "a row for each run: terminal and report"
    CELLS = "a row for each configuration of a sweep on its page"
    COMPARED = "default figures of comparisons, nightly runs and overviews"
    WATCHED = "figures for Prometheus"
    ANSWER = "figures in the sentences of a sweep summary"
    EXPORT = "columns that identify a record in CSV and Parquet"
    # Sections of a Markdown page.
    RECOVERY = "Recovery"
    LATENCY = "Latency and throughput"
    STAGES = "Stages"
    KEYS = "Keys"
    RESOURCES = "CPU, memory and work"
    AUDIT = "Audit"


class Over(StrEnum):
    """Aggregation of a figure over the repetitions of a configuration."""

    MEDIAN = "median, least and greatest"
    TOTAL = "sum"
    HELD = "number of repetitions in which it is true"


@dataclass(frozen=True)
class CatalogueColumn:
    """Column: key, group in selection lists, name and unit.

    `read` returns its value for a record, or None if unknown or not applicable. `left`: aligned left.
    """

    key: str
    group: str
    name: str
    unit: str = ""
    heads: Mapping[Sheet, str] = field(default_factory=dict, hash=False)
    read: Callable[[IndexEntry], Any] | None = None
    left: bool = False

    @property
    def title(self) -> str:
        """Name and unit."""
        return f"{self.name} ({self.unit})" if self.unit else self.name

    def head(self, table: Sheet) -> str:
        """Return the heading in a table."""
        return self.heads.get(table) or self.name

    def value(self, entry: IndexEntry) -> Any:
        """Return the value for a record, or None if unknown."""
        return self.read(entry) if self.read else getattr(entry, self.key)

    def text(self, value: Any) -> str:
        """Return a value as shown in a table, without its unit."""
        return NONE if value is None else plain(value)


@dataclass(frozen=True)
class Metric(CatalogueColumn):
    """Numeric figure. `better`: `LESS` or `MORE`, the better direction, or None if there is none.

    `listed`: whether selection lists offer it; False for thresholds, bounds and sample sizes.
    """

    better: str | None = None
    over: Over = Over.MEDIAN
    listed: bool = True

    def value(self, entry: IndexEntry) -> float | None:
        """Return the figure of a record; 1 or 0 for a truth value, None if unknown."""
        value = self.read(entry) if self.read else entry.metrics.get(self.key)
        return None if value is None else float(value)

    def text(self, value: float | None, digits: int = 2) -> str:
        """Return a value as shown in a table, without its unit; `digits` applies to seconds."""
        if value is None:
            return NONE
        match self.unit:
            case "ms":
                return milliseconds(value)
            case "s":
                return seconds(value, digits)
            case "cores":
                return cores(value)
            case "share":
                return share(value)
        return count(value) if value == int(value) or abs(value) >= 1000 else f"{value:,.3g}"
