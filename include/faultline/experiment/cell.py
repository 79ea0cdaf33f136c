"""Cells and sweep ids."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from typing import Annotated, Protocol

from pydantic import StringConstraints

from faultline.system.errors import ConfigError

# DAG that measures one cell.
EXPERIMENT = "experiment"
# Number and delay of the retries of an idempotent step or task.
TRIED_AGAIN = 2
RETRY_DELAY_S = 5.0


class CellCoordinates(Protocol):
    """Object with the coordinates of a cell, such as a record."""

    @property
    def config_id(self) -> str:
        """Identity of the configuration."""
        ...

    @property
    def repetition(self) -> int:
        """Index of the repetition, from 0."""
        ...

    @property
    def series(self) -> str:
        """Averaging group: date of a nightly run, or build label."""
        ...


@dataclass(frozen=True, order=True)
class Cell:
    """One repetition of one configuration in one series."""

    config_id: str
    repetition: int
    series: str

    @classmethod
    def of(cls, record: CellCoordinates) -> Cell:
        """Return the cell that a record belongs to."""
        return cls(record.config_id, record.repetition, record.series)


# Sweep ids are used in file names and URLs and may come from untrusted input.


# Airflow run ids contain the sweep, a cell and a build in at most 250 characters; file names have 255 bytes.
MOST = 200
# Excludes `..`, leading and trailing dots, and characters that paths, URLs or terminals interpret.
PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9_~-]*(\.[A-Za-z0-9_~-]+)*$"
SweepId = Annotated[str, StringConstraints(pattern=PATTERN, max_length=MOST)]

# Airflow run ids, such as scheduled__2026-11-21T02:00:00+00:00; their times are unique within a DAG.
_KINDS = ("manual", "scheduled", "backfill")
_MOMENT = re.compile(r"(?P<date>\d{4}-\d\d-\d\d)T(?P<time>\d\d:\d\d:\d\d)(?:\.(?P<fraction>\d+))?(?:[+]00:00|Z)", re.A)
_ID = re.compile(PATTERN.removeprefix("^").removesuffix("$"))


def is_sweep_id(text: object) -> bool:
    """Return whether a text is a valid sweep id."""
    return isinstance(text, str) and len(text) <= MOST and _ID.fullmatch(text) is not None


def require_sweep_id(text: object) -> None:
    """Raise ConfigError for an invalid sweep id."""
    if not is_sweep_id(text):
        raise ConfigError(
            f"sweep_id: got {str(text)[:MOST]!r}; expected letters, digits and _~- with dots between them "
            f"(at most {MOST})"
        )


def sweep_id_of(run_id: str) -> str:
    """Return a short sweep id: the time in the run id if Airflow chose that, else the run id.

    Two runs never share a sweep id. Invalid characters become `-`.
    """
    kind, _, moment = run_id.partition("__")
    if kind in _KINDS and (found := _MOMENT.match(moment)):
        digits = "".join(found["date"].split("-")) + "T" + "".join(found["time"].split(":"))
        fraction = f"-{found['fraction']}" if found["fraction"] else ""
        rest = moment[found.end() :].strip("_")
        run_id = f"{digits}{fraction}{f'-{rest}' if rest else ''}"
    return _allowed(run_id)


def _allowed(text: str) -> str:
    """Return the text with `-` for invalid characters."""
    found = re.sub(r"\.{2,}|\.$", "-", re.sub(r"[^A-Za-z0-9._~-]", "-", text))
    if not found or found[0] in ".~-":
        found = f"run{found}"
    if len(found) <= MOST:
        return found
    # A checksum of the whole text distinguishes truncated ids.
    return f"{found[: MOST - 9].rstrip('.')}-{zlib.crc32(text.encode('utf-8', 'surrogatepass')):08x}"
