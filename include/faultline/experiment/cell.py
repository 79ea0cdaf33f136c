"""The unit of work of a sweep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

# The DAG that measures one.
EXPERIMENT = "experiment"


class Placed(Protocol):
    """What says to which cell it belongs, such as a record."""

    @property
    def config_id(self) -> str:
        """Identity of the configuration."""
        ...

    @property
    def repetition(self) -> int:
        """Which repetition, from 0."""
        ...

    @property
    def series(self) -> str:
        """A night's date, or a build."""
        ...


@dataclass(frozen=True, order=True)
class Cell:
    """The unit of work that ends with one valid record."""

    config_id: str
    repetition: int
    series: str

    @classmethod
    def of(cls, record: Placed) -> Cell:
        """The cell that a record belongs to."""
        return cls(record.config_id, record.repetition, record.series)
