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
    """The tables that columns name."""

    RUNS = "a row for each run: terminal and report"
    CELLS = "a row for each configuration of a sweep on its page"
    COMPARED = "figures that comparisons, nightly runs and overviews take by default"
    WATCHED = "figures for Prometheus"
    ANSWER = "figures in the sentences of an answer"
    EXPORT = "what identifies a record in CSV and Parquet"
    # Sections of a page in Markdown.
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
    HELD = "in how many it is true"


@dataclass(frozen=True)
class CatalogueColumn:
    """One column: its key, the group that it stands under, its name and its unit.

    `read` returns its value of a record, None where it is unknown or does not apply.
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
        """Return the value of a record; None where it is unknown."""
        return self.read(entry) if self.read else getattr(entry, self.key)

    def text(self, value: Any) -> str:
        """Return a value as a table shows it, without its unit."""
        return NONE if value is None else plain(value)


@dataclass(frozen=True)
class Metric(CatalogueColumn):
    """One figure, a number. `better`: whether less of it is better or more; None where neither is.

    `listed`: whether lists to choose from offer it; else it is a bound, or a count of what a figure was made of.
    """

    better: str | None = None
    over: Over = Over.MEDIAN
    listed: bool = True

    def value(self, entry: IndexEntry) -> float | None:
        """Return the figure of a record; a truth value as 1 or 0."""
        value = self.read(entry) if self.read else entry.metrics.get(self.key)
        return None if value is None else float(value)

    def text(self, value: float | None, digits: int = 2) -> str:
        """Return a value as it stands in a table, without its unit; seconds with `digits`."""
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
