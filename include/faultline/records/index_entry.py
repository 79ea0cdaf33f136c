"""Short form of a record for pages and comparisons: its identity, and its figures by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from faultline.records.format import fault_of
from faultline.records.record import USABLE, Record
from faultline.records.recoveries import Bounds, recoveries_of, spacing_of, window_of


@dataclass(frozen=True)
class IndexEntry:
    """Figures and identity of one record for the pages, without its file.

    `path` is relative to the folder of records. `metrics`: known numbers by dotted path in the record, such as
    `latency_ms.p50`, in its units. `recoveries`: empty unless one fault is injected several times. `window`: T0 (start
    of the load) and length of the measured window, in s; `spacing_s`: mean time between two injections.
    """

    path: str
    attempt: str
    matrix: str | None
    sweep_id: str | None
    config_id: str
    repetition: int
    series: str
    build: str
    status: str
    measured_at: str
    logical_date: str | None
    config: Mapping[str, Any]
    metrics: Mapping[str, float | bool]
    reasons: tuple[str, ...]
    cores: int | None
    # `commit`: `git describe` of the checkout, `-dirty` with changes. `surroundings`: compared between nightly runs.
    commit: str | None
    surroundings: Mapping[str, str]
    recoveries: tuple[Bounds, ...] = ()
    window: tuple[float, float] | None = None
    spacing_s: float | None = None

    @classmethod
    def of(cls, record: Record, path: str = "") -> IndexEntry:
        """Return the entry of `record`."""
        return cls.from_content(path, record.config, entry_content(record))

    @classmethod
    def from_content(cls, path: str, config: Mapping[str, Any], content: Mapping[str, Any]) -> IndexEntry:
        """Return the entry for the result of `entry_content`, which may have been stored as JSON."""
        fields = {
            **content,
            "reasons": tuple(content["reasons"]),
            "recoveries": tuple(Bounds(*bounds) for bounds in content["recoveries"]),
            "window": tuple(content["window"]) if content["window"] else None,
        }
        return cls(path=path, config=config, **fields)

    @property
    def is_usable(self) -> bool:
        """Whether its figures count: status valid or unmet."""
        return self.status in USABLE

    @property
    def group(self) -> str:
        """Averaging group: build, and series if it differs."""
        return self.build if self.series == self.build else f"{self.build} · {self.series}"

    @cached_property
    def fault(self) -> str:
        """The fault in a few words."""
        return fault_of(self.config)


_Measured = TypeVar("_Measured", IndexEntry, Record)


def counted_entries(measured: Iterable[_Measured]) -> list[_Measured]:
    """Return `measured` without superseded entries; it must be sorted by attempt.

    A usable entry is superseded by a later usable one of the same repetition, series and build.
    """
    entries = list(measured)
    newest = {_cell_key(entry): entry.attempt for entry in entries if entry.is_usable}
    return [entry for entry in entries if not entry.is_usable or newest[_cell_key(entry)] == entry.attempt]


def _cell_key(entry: IndexEntry | Record) -> tuple[str, int, str, str]:
    return entry.config_id, entry.repetition, entry.series, entry.build


def entry_content(record: Record) -> dict[str, Any]:
    """Return the fields of a record's `IndexEntry` as JSON values, without path and configuration."""
    return {
        "attempt": record.attempt,
        "matrix": record.matrix,
        "sweep_id": record.sweep_id,
        "config_id": record.config_id,
        "repetition": record.repetition,
        "series": record.series,
        "build": record.build,
        "status": record.status,
        "measured_at": record.measured_at,
        "logical_date": record.logical_date,
        "metrics": dict(_numbers(record.metrics.model_dump(exclude_none=True))),
        "reasons": record.reasons,
        "cores": record.environment.cores,
        "commit": record.environment.git_commit,
        "surroundings": _surroundings(record),
        "recoveries": [[one.number, one.low, one.high] for one in recoveries_of(record)],
        "window": window_of(record),
        "spacing_s": spacing_of(record),
    }


def _surroundings(record: Record) -> dict[str, str]:
    """Return host and versions."""
    environment = record.environment
    known = {"host": environment.host, "cores": environment.cores, **(environment.versions or {})}
    return {name: str(value) for name, value in known.items() if value is not None}


def _numbers(values: dict[str, Any], prefix: str = "") -> Iterable[tuple[str, float | bool]]:
    """Return the numbers and truth values outside lists, by dotted path."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _numbers(value, f"{prefix}{name}.")
        elif isinstance(value, int | float):
            yield f"{prefix}{name}", value
