"""t2: when the fault was noticed. Who notices the loss of which victim, the engine knows; the rest is common to all.

An act that is undone (a pause, a delayed or cut connection) may pass without anybody noticing: then the undo itself
takes the place of t2.
"""

from __future__ import annotations

from faultline.engines.base import Hit
from faultline.records.judge.recovery.evidence import Event, Evidence
from faultline.system.journal import Line


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
    found = hits(evidence)
    return evidence.engine.without_effect(found[0], evidence.traces) if len(found) == 1 and found[0].victims else None


def _noticed(evidence: Evidence) -> Event | None:
    found = [evidence.engine.detect(hit, evidence.traces) for hit in hits(evidence)]
    seen = [one for one in found if one is not None]
    if len(seen) < len(found):
        return None
    last = max(seen, key=lambda one: one.wall_ns)
    return Event("t2", last.wall_ns, last.source)


def hits(evidence: Evidence) -> list[Hit]:
    """The victims by role, by the actual one that a line names; what was asked for may have been `any`."""
    by_role: dict[str, list[Line]] = {}
    for victim in evidence.victims:
        role = str(victim.get("role"))
        by_role.setdefault(role if role in evidence.engine.roles else evidence.victim, []).append(victim)
    return [Hit(role, victims, evidence.span) for role, victims in (by_role or {evidence.victim: []}).items()]
