"""One record as the pages and comparisons know it: what identifies it, and its figures by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from faultline.records.format import fault_of
from faultline.records.record import USABLE, Record
from faultline.records.recoveries import Bounds, recoveries_of, spacing_of, window_of


@dataclass(frozen=True)
class IndexEntry:
    """Figures and identity of one record for the pages, without its file.

    `path` is relative to the folder of records; `metrics`: every known number by its path in the record joined with
    dots, such as `latency_ms.p50`, in the record's units. `recoveries`: of a run with several injections, otherwise
    empty. `window`: T0 and length of the measured window, in s; `spacing_s`: mean time between two injections.
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
    # `git describe` of the checkout, with `-dirty` if it had changes; and the environment that nightly runs compare.
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
        """Return the entry with these fields, as `entry_content` returns them or as JSON holds them."""
        kept = {
            **content,
            "reasons": tuple(content["reasons"]),
            "recoveries": tuple(Bounds(*one) for one in content["recoveries"]),
            "window": tuple(content["window"]) if content["window"] else None,
        }
        return cls(path=path, config=config, **kept)

    @property
    def is_usable(self) -> bool:
        """Whether its figures count."""
        return self.status in USABLE

    @property
    def group(self) -> str:
        """Averaging group: one build, and one series of it."""
        return self.build if self.series == self.build else f"{self.build} · {self.series}"

    @cached_property
    def fault(self) -> str:
        """The fault in a few words."""
        return fault_of(self.config)


_Measured = TypeVar("_Measured", IndexEntry, Record)


def counted_entries(measured: Iterable[_Measured]) -> list[_Measured]:
    """Return the entries in order of attempt without superseded ones.

    Of a repetition that was measured twice in one series of one build, the newest usable entry stays. Unusable ones
    stay.
    """
    found = list(measured)
    newest = {_place(one): one.attempt for one in found if one.is_usable}
    return [one for one in found if not one.is_usable or newest[_place(one)] == one.attempt]


def _place(one: IndexEntry | Record) -> tuple[str, int, str, str]:
    return one.config_id, one.repetition, one.series, one.build


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
    """Return every single number and truth value by its path; what is null, a list or a text is left out."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _numbers(value, f"{prefix}{name}.")
        elif isinstance(value, int | float):
            yield f"{prefix}{name}", value


# Above this size Spark's optimisations pay off, and the job is too long for the persistent Spark session.
LARGE_BYTES = 100_000_000


def is_large(attempts: Path) -> bool:
    """Return whether aggregating the tuples of these attempts takes longer than a short job."""
    return tuples_bytes(attempts) > LARGE_BYTES


def tuples_bytes(attempts: Path) -> int:
    """Return size of all harvested tuples, which is what aggregating them takes."""
    return sum(file.stat().st_size for file in attempts.glob("*/harvest/tuples.parquet"))
