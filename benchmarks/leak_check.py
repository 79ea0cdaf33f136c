"""Checks after a sweep under kills: its records, and leaked processes, ports and topics."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from faultline.experiment.attempt import Attempt
from faultline.experiment.attempt_plan import read_plan
from faultline.experiment.cell import Cell
from faultline.installation.supervision import marked_processes
from faultline.installation.supervisord import Supervisor
from faultline.records.record import Record
from faultline.records.store import Store
from faultline.records.sweep_plan import SweepCell, SweepPlans
from faultline.system.errors import FaultlineError, InfrastructureError
from faultline.system.kafka import kafka_client
from faultline.system.process_ledger import processes_with_mark
from faultline.system.process_tags import RUN_MARK
from faultline.system.settings import Settings, port_is_free


@dataclass(frozen=True)
class CellCounts:
    """Records of the planned cells of a series.

    `once`: number of cells with exactly one usable record (`valid` or `unmet`); `lost`: with none; `double`: with
    more; `remeasured`: attempts that began after their cell had a usable record; `attempts`: all attempts.
    """

    planned: int
    once: int
    lost: int
    double: int
    remeasured: int
    attempts: int


def count_cells(
    cells: Sequence[SweepCell], series: str, attempts: Sequence[str], records: Sequence[Record]
) -> CellCounts:
    """Compare records with a plan.

    `attempts`: ids of all attempts of the series' sweeps, in order; `records`: their records.
    """
    usable = Counter(Cell.of(record) for record in records if record.is_usable)
    wanted = [Cell(cell.config_id, cell.repetition, series) for cell in cells]
    first_sound: dict[Cell, str] = {}
    for record in records:
        if record.is_usable:
            first_sound.setdefault(Cell.of(record), record.attempt)
    cell_of = {record.attempt: Cell.of(record) for record in records}
    again = [one for one in attempts if one in cell_of and one > first_sound.get(cell_of[one], one)]
    return CellCounts(
        planned=len(wanted),
        once=sum(usable[cell] == 1 for cell in wanted),
        lost=sum(usable[cell] == 0 for cell in wanted),
        double=sum(usable[cell] > 1 for cell in wanted),
        remeasured=len(again),
        attempts=len(attempts),
    )


def attempts_of(settings: Settings, *sweeps: str) -> list[Attempt]:
    """Return all attempts, or those of the given sweeps, in order."""
    found = [Attempt(folder) for folder in sorted(settings.attempts.glob("*")) if folder.is_dir()]
    return [attempt for attempt in found if sweep_of(attempt) in sweeps] if sweeps else found


def count_series(settings: Settings, series: str, sweeps: Sequence[str]) -> CellCounts:
    """Return the counts for the sweeps of a series, each of which planned all of its cells.

    Raises InfrastructureError if none of them has a plan.
    """
    manifests = SweepPlans(settings.results)
    manifest = next((plan for sweep in sweeps if (plan := manifests.read(sweep))), None)
    if manifest is None:
        raise InfrastructureError(f"{', '.join(sweeps)}: no plan")
    attempts = [attempt.id for attempt in attempts_of(settings, *sweeps)]
    records = [record for record in Store(settings.results).query() if record.sweep_id in sweeps]
    return count_cells(manifest.cells, series, attempts, records)


def sweep_of(attempt: Attempt) -> str | None:
    """Return the sweep of an attempt; None if unknown."""
    try:
        return read_plan(attempt).order.sweep_id
    except FaultlineError:
        return None


def unclosed_attempts(settings: Settings) -> list[str]:
    """Return the attempts that were not closed, one line each."""
    return [f"{attempt.id}: not closed" for attempt in attempts_of(settings) if not attempt.closed.exists()]


def stray_processes(settings: Settings) -> list[str]:
    """Return processes of this installation without a service, and those tagged with an attempt, one line each."""
    daemon = psutil.Process(Supervisor(settings).call("supervisor.getPID"))
    known = {daemon.pid, *(process.pid for process in daemon.children(recursive=True))}
    found = {process.pid: process for process in marked_processes(settings) if process.pid not in known}
    for attempt in attempts_of(settings):
        found |= {process.pid: process for process in processes_with_mark(RUN_MARK, attempt.id)}
    lines = []
    for process in found.values():
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                lines.append(f"process {process.pid}: {' '.join(process.cmdline())[:120]}")
    return lines


def stray_ports(settings: Settings) -> list[str]:
    """Return ports of attempts, and the proxy's, that are still in use, one line each."""
    wanted = {settings.ports["kafka_proxy"]: "the proxy"}
    for attempt in attempts_of(settings):
        with contextlib.suppress(FaultlineError):
            if port := read_plan(attempt).engine.addresses.get("ui_port"):  # not every engine has one
                wanted[int(port)] = attempt.id
    return [f"port {port} of {owner}: still in use" for port, owner in wanted.items() if not port_is_free(port)]


def stray_topics(settings: Settings) -> list[str]:
    """Return topics of attempts that still exist, one line each."""
    from confluent_kafka.admin import AdminClient

    client = AdminClient(kafka_client(settings.endpoints.kafka, {"log_level": 0}, secrets=settings.secrets))
    return [f"topic {name}" for name in client.list_topics(timeout=30).topics if name.startswith("faultline-")]
