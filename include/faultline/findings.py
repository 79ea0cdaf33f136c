"""The papers' findings on failures, each held against records of the matrix `recovery`.

A finding is a claim and a test of it: does this measurement agree, disagree, or can it not tell? With few
repetitions a difference is only believed when it points the same way everywhere, and a recovery that was
not seen to end (censored) proves nothing that would need its length. Source of the claims: Jiang, Wang and
Zhang, *Benchmarking for fault-tolerant performance in distributed stream processing systems* (2019), section 5.3.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from faultline.record import Record, RecoveryPart
from faultline.table import fault_of

# The paper ends one process of the engine on a random node: here an executor, or a Spark worker with its executors.
PROCESSES = ("executor", "worker")
FLINK_RELOAD_S = (30.0, 60.0)
FLINK_TOTAL_S = 60.0
STORM_RESTART_S = (5.0, 20.0)


class Verdict(StrEnum):
    """What a measurement says of a claim."""

    AGREES = "agrees"
    DISAGREES = "disagrees"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True)
class Finding:
    """A claim of a paper, the verdict, and in one line what the verdict rests on."""

    claim: str
    verdict: Verdict
    evidence: str


Test = Callable[[Sequence[Record]], tuple[Verdict, str]]


def findings(records: Sequence[Record]) -> list[Finding]:
    """Every claim with its verdict, from the valid records among `records`."""
    valid = [record for record in records if record.status == "valid" and record.metrics.recovery.recovered is not None]
    return [Finding(claim, *test(valid)) for claim, test in CLAIMS.items()]


def reload_dominates(records: Sequence[Record]) -> tuple[Verdict, str]:
    """Reload against replay, for the death of one process of the engine."""
    shares = [
        part.reload_s / (part.reload_s + part.replay_s)
        for part in _parts(records, PROCESSES)
        if part.reload_s is not None and part.replay_s is not None and part.reload_s + part.replay_s > 0
    ]
    if not shares:
        return _nothing()
    said = f"reload is {min(shares):.0%} to {max(shares):.0%} of reload + replay (n = {len(shares)})"
    return _unanimous([share > 0.5 for share in shares]), said


def reload_waits_for_heartbeats(records: Sequence[Record]) -> tuple[Verdict, str]:
    """The length of the reload, and how much of it is detection."""
    parts = [part for part in _parts(records, PROCESSES) if part.reload_s is not None and part.detection_s is not None]
    if not parts:
        return _nothing()
    reloads = [float(part.reload_s or 0) for part in parts]
    detections = [float(part.detection_s or 0) for part in parts]
    detection_s = statistics.median(detections)
    how = ": a broken connection is noticed, no heartbeat is waited for" if detection_s < 1 else ""
    reload_s = statistics.median(reloads)
    said = f"median reload {reload_s:.1f} s, of which detection {detection_s:.2f} s{how} (n = {len(parts)})"
    low, high = FLINK_RELOAD_S
    agree = [low <= whole <= high and part > whole / 2 for whole, part in zip(reloads, detections, strict=True)]
    return _unanimous(agree), said


def total_within_a_minute(records: Sequence[Record]) -> tuple[Verdict, str]:
    """Whether every recovery ended in time; one that was watched for less than a minute proves nothing."""
    parts = _parts(records, PROCESSES)
    ended = [part.macro_s for part in parts if part.macro_s is not None]
    open_ended = [part.censored_at_s or 0.0 for part in parts if part.macro_s is None]
    if not parts:
        return _nothing()
    said = (
        f"longest macro recovery {max(ended, default=0.0):.1f} s, {len(open_ended)} not seen to end (n = {len(parts)})"
    )
    if any(time > FLINK_TOTAL_S for time in [*ended, *open_ended]):
        return Verdict.DISAGREES, said
    return (Verdict.CANNOT_TELL if open_ended else Verdict.AGREES), said


def replay_grows_with_state(records: Sequence[Record]) -> tuple[Verdict, str]:
    """Replay at the smallest and the largest state, victim by victim and interval by interval."""
    return _compared(records, "state_mb", "checkpoint_interval_s", "replay_s", PROCESSES)


def restart_takes_ten_seconds(records: Sequence[Record]) -> tuple[Verdict, str]:
    """How long it takes until a replaced executor has registered."""
    ups = [part.replacement_up_s for part in _parts(records, ("executor",)) if part.replacement_up_s is not None]
    if not ups:
        return _nothing()
    low, high = STORM_RESTART_S
    said = f"the replacement is up after {min(ups):.1f} to {max(ups):.1f} s (n = {len(ups)})"
    return _unanimous([low <= up <= high for up in ups]), said


def recovery_grows_with_the_interval(records: Sequence[Record]) -> tuple[Verdict, str]:
    """Macro recovery at the shortest and the longest interval, victim by victim."""
    victims = sorted({str(record.config["fault"]) for record in records})
    return _compared(records, "checkpoint_interval_s", "state_mb", "macro_s", victims)


CLAIMS: dict[str, Test] = {
    "Flink: reload takes the larger part of a recovery": reload_dominates,
    "Flink: reload takes about 45 s, because the loss is noticed by a heartbeat's timeout": reload_waits_for_heartbeats,
    "Flink: a recovery takes less than 60 s": total_within_a_minute,
    "Flink: replay grows with the state": replay_grows_with_state,
    "Storm: starting the dead process again takes about 10 s": restart_takes_ten_seconds,
    "Storm: recovery grows with the checkpoint interval": recovery_grows_with_the_interval,
}


def _parts(records: Sequence[Record], victims: Sequence[str]) -> list[RecoveryPart]:
    return [
        record.metrics.recovery
        for record in records
        if record.config["fault"] in victims and record.config["fault_action"] == "kill"
    ]


def _compared(
    records: Sequence[Record], by: str, beside: str, figure: str, victims: Sequence[str]
) -> tuple[Verdict, str]:
    """Medians of `figure` at the least and the greatest value of `by`, for each victim and value of `beside`."""
    values: dict[tuple[str, float], dict[float, list[float | None]]] = {}
    for record in records:
        if record.config["fault"] in victims and record.config["fault_action"] == "kill":
            series = values.setdefault((fault_of(record.config), float(record.config[beside])), {})
            series.setdefault(float(record.config[by]), []).append(getattr(record.metrics.recovery, figure))
    grew: list[bool] = []
    said: list[str] = []
    for (name, other), series in sorted(values.items()):
        least, greatest = min(series), max(series)
        ends = [series[least], series[greatest]]
        if least == greatest or any(value is None for end in ends for value in end):
            continue
        low, high = (statistics.median(value for value in end if value is not None) for end in ends)
        grew.append(high > low)
        said.append(f"{name} ({beside} {other:g}): {low:.1f} s at {least:g}, {high:.1f} s at {greatest:g}")
    if not grew:
        return Verdict.CANNOT_TELL, f"no victim was seen to recover at two values of {by}"
    return _unanimous(grew), "; ".join(said)


def _unanimous(agree: Sequence[bool]) -> Verdict:
    if all(agree):
        return Verdict.AGREES
    return Verdict.CANNOT_TELL if any(agree) else Verdict.DISAGREES


def _nothing() -> tuple[Verdict, str]:
    return Verdict.CANNOT_TELL, "no valid record of such a kill"
