"""t2: when the engine, or whoever watches over it, noticed the fault; by the role of what was hit.

A new kind of victim needs one function in DETECTORS. An act that is undone (a pause, a delayed or cut
connection) may pass without anybody noticing: then the undo itself takes the place of t2.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pandas as pd

from faultline.analysis.evidence import Event, Evidence
from faultline.base.journal import Line
from faultline.base.window import CLOCK_RESOLUTION_NS
from faultline.engines.spark.driver_log import LogLine

Detector = Callable[[Evidence, Sequence[Line]], Event | None]

_EXECUTOR_ID = re.compile(r"--executor-id[ =](\S+)")
_APPLICATION = re.compile(r"--app-id[ =](\S+)")


def detect(evidence: Evidence) -> Event | None:
    """t2. Of victims of several roles the last one's; None when nothing was noticed."""
    noticed, undone = _noticed(evidence), undo_of(evidence)
    if undone is None or (noticed is not None and noticed.wall_ns <= undone.wall_ns):
        return noticed
    return Event("t2", undone.wall_ns, f"{undone.source}; nothing was noticed before")


def undo_of(evidence: Evidence) -> Event | None:
    """The end of an act that is undone; of several victims the last one's."""
    if not evidence.undone:
        return None
    last = max(evidence.undone, key=lambda line: int(line["wall_ns"]))
    return Event("undone", int(last["wall_ns"]), f"conductor.jsonl: {last.get('undo')} undone")


def without_effect(evidence: Evidence) -> str | None:
    """Why a fault that hit its process changed nothing for the run all the same; None when it did."""
    if evidence.undone:
        return None
    roles = {_role(evidence, victim) for victim in evidence.victims}
    if roles == {"python_worker"} and _lost_task(evidence) is None:
        return "no task was lost"
    if roles == {"worker"} and not any(victim.get("executors", True) for victim in evidence.victims):
        return "the worker hosted no executor of the run"
    return None


def executor_removed(evidence: Evidence, victims: Sequence[Line]) -> Event | None:
    """`removeTime` in Spark's REST interface; of several victims the last one's.

    A victim is known by `--executor-id` and `--app-id` in its command line: a restarted driver is another
    application, whose executors count from 0 again. Without an id, the first removal after t0.
    """
    identities: list[tuple[str | None, str]] = []
    for victim in victims:
        identity = _option(victim, _EXECUTOR_ID)
        if identity is not None:
            identities.append((_option(victim, _APPLICATION), identity))
    return _removal(evidence, identities) or _lineage_given_up(evidence)


def executors_of_worker_removed(evidence: Evidence, victims: Sequence[Line]) -> Event | None:
    """`removeTime` of the executors that the worker hosted; the last one's."""
    identities = [(None, str(identity)) for victim in victims for identity in victim.get("executors") or ()]
    return _removal(evidence, identities) or _lineage_given_up(evidence)


def driver_exited(evidence: Evidence, victims: Sequence[Line]) -> Event | None:
    """The workload supervisor's exit line."""
    exits = evidence.journalled(evidence.supervisor, "exit")
    if not exits:
        return None
    line = exits[0]
    return Event("t2", int(line["wall_ns"]), f"supervisor.jsonl: exit of incarnation {line.get('incarnation')}")


def task_lost(evidence: Evidence, victims: Sequence[Line]) -> Event | None:
    """The first lost task in the driver's log."""
    return _logged(_lost_task(evidence))


def broker_disconnected(evidence: Evidence, victims: Sequence[Line]) -> Event | None:
    """The first line of the driver's log about a broken connection to the broker."""
    return _logged(next((line for line in evidence.driver.disconnects if evidence.watches(line.wall_ns)), None))


DETECTORS: dict[str, Detector] = {
    "executor": executor_removed,
    "worker": executors_of_worker_removed,
    "driver": driver_exited,
    "python_worker": task_lost,
    "kafka": broker_disconnected,
    "kafka_connection": broker_disconnected,
}


def _noticed(evidence: Evidence) -> Event | None:
    by_role: dict[str, list[Line]] = {}
    for victim in evidence.victims:
        by_role.setdefault(_role(evidence, victim), []).append(victim)
    if not by_role:
        by_role = {evidence.victim: []}
    found = [DETECTORS[role](evidence, victims) for role, victims in by_role.items()]
    seen = [event for event in found if event is not None]
    return max(seen, key=lambda event: event.wall_ns) if len(seen) == len(found) else None


def _role(evidence: Evidence, victim: Line) -> str:
    """The actual role of a victim; what was asked for may have been `any`."""
    role = str(victim.get("role"))
    return role if role in DETECTORS else evidence.victim


def _removal(evidence: Evidence, identities: Sequence[tuple[str | None, str]]) -> Event | None:
    """The last removal of these executors (application or None, id); without any id the first removal after t0."""
    removed = evidence.executors.dropna(subset=["removed_ns"])
    removed = removed[[evidence.watches(int(instant)) for instant in removed["removed_ns"]]]
    if removed.empty:
        return None
    removed = removed.sort_values("wall_ns")  # the last sample of an executor decides
    columns = (removed[name].tolist() for name in ("app_id", "id", "removed_ns"))
    known = {(str(application), str(identity)): int(at) for application, identity, at in zip(*columns, strict=True)}
    if not identities:
        return Event("t2", min(known.values()), "recorder.jsonl: first executor removed after t0 (REST)")
    present = _application_at(evidence)
    instants = [known.get((str(application or present), identity)) for application, identity in identities]
    if any(instant is None for instant in instants):
        return None
    names = ", ".join(identity for _, identity in identities)
    latest = max(instant for instant in instants if instant is not None)
    return Event("t2", latest, f"recorder.jsonl: removeTime of executor {names} (REST)")


def _application_at(evidence: Evidence) -> str | None:
    """The application that ran when the fault came: the one of the last sample up to t0, else of the first."""
    samples: pd.DataFrame = evidence.executors.sort_values("wall_ns")
    before = samples[samples["wall_ns"] <= evidence.t0_ns + CLOCK_RESOLUTION_NS]
    if len(before):
        return str(before["app_id"].iloc[-1])
    return str(samples["app_id"].iloc[0]) if len(samples) else None


def _lineage_given_up(evidence: Evidence) -> Event | None:
    """In commit mode `none` the supervisor ends the query on a loss, at times before the recorder's next sample."""
    lineages = evidence.new_lineages()
    if not lineages:
        return None
    line = lineages[0]
    return Event("t2", int(line["wall_ns"]), f"supervisor.jsonl: lineage {line.get('lineage')}: {line.get('reason')}")


def _lost_task(evidence: Evidence) -> LogLine | None:
    return next((line for line in evidence.driver.lost_tasks if evidence.watches(line.wall_ns)), None)


def _logged(line: LogLine | None) -> Event | None:
    return None if line is None else Event("t2", line.wall_ns, f"{line.file}: {line.text}")


def _option(victim: Line, pattern: re.Pattern[str]) -> str | None:
    command = victim.get("command") or []
    match = pattern.search(command if isinstance(command, str) else " ".join(map(str, command)))
    return match.group(1) if match else None
