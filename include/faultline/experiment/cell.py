"""The unit of work of a sweep."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from typing import Annotated, Protocol

from pydantic import StringConstraints

from faultline.system.errors import ConfigError

# The DAG that measures one.
EXPERIMENT = "experiment"
# How often a step or task that gives the same when it is done again is tried again, and after how long.
TRIED_AGAIN = 2
RETRY_DELAY_S = 5.0


class CellCoordinates(Protocol):
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
    def of(cls, record: CellCoordinates) -> Cell:
        """Return the cell that a record belongs to."""
        return cls(record.config_id, record.repetition, record.series)


# The id of a sweep: a name of files, a part of addresses, and a text that others wrote. It can be nothing else.


# A run of Airflow is named after the sweep, a cell and a build, in 250 characters; a file in 255 bytes.
MOST = 200
# Without `..`, a dot in front or at the end, or anything that a path, an address or a terminal reads.
PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9_~-]*(\.[A-Za-z0-9_~-]+)*$"
SweepId = Annotated[str, StringConstraints(pattern=PATTERN, max_length=MOST)]

# Airflow's names of runs, such as scheduled__2026-11-21T02:00:00+00:00. No two of a DAG have the same time.
_KINDS = ("manual", "scheduled", "backfill")
_MOMENT = re.compile(r"(?P<date>\d{4}-\d\d-\d\d)T(?P<time>\d\d:\d\d:\d\d)(?:\.(?P<fraction>\d+))?(?:[+]00:00|Z)", re.A)
_ID = re.compile(PATTERN.removeprefix("^").removesuffix("$"))


def is_sweep_id(text: object) -> bool:
    """Return whether a sweep may be called so."""
    return isinstance(text, str) and len(text) <= MOST and _ID.fullmatch(text) is not None


def require_sweep_id(text: object) -> None:
    """Raise ConfigError for what no sweep may be called."""
    if not is_sweep_id(text):
        raise ConfigError(
            f"sweep_id: {str(text)[:MOST]!r} is no id of a sweep; use letters, digits and _~-, dots between them "
            f"(at most {MOST})"
        )


def sweep_id_of(run_id: str) -> str:
    """Return short readable id of a sweep: of a run that Airflow named by the time, the time without punctuation; else
    the run's own id, so that two runs never share one. What an id may not hold becomes `-`."""
    kind, _, moment = run_id.partition("__")
    if kind in _KINDS and (found := _MOMENT.match(moment)):
        digits = "".join(found["date"].split("-")) + "T" + "".join(found["time"].split(":"))
        fraction = f"-{found['fraction']}" if found["fraction"] else ""
        rest = moment[found.end() :].strip("_")
        run_id = f"{digits}{fraction}{f'-{rest}' if rest else ''}"
    return _allowed(run_id)


def _allowed(text: str) -> str:
    """Return the text with `-` in place of what an id may not hold."""
    found = re.sub(r"\.{2,}|\.$", "-", re.sub(r"[^A-Za-z0-9._~-]", "-", text))
    if not found or found[0] in ".~-":
        found = f"run{found}"
    if len(found) <= MOST:
        return found
    # Cut, it is told apart from others that begin alike by a sum of the whole.
    return f"{found[: MOST - 9].rstrip('.')}-{zlib.crc32(text.encode('utf-8', 'surrogatepass')):08x}"
