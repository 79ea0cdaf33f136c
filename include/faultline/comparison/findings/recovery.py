"""Claims of the fault-tolerance paper on recovery from the death of a process.

Source: Jiang, Wang and Zhang (2019), section 5.3. One process of the engine on a random node is ended while the job
runs steadily.

What it says. Figures 8(a) and 8(b), Flink: reloading takes the larger part of a recovery, about 45 s with default
settings, because the loss is noticed when a heartbeat times out; all of it ends within 60 s; replay grows with the
state. Figures 9(a) and 9(b), Storm at 500 records/s, measured by its throughput: only the dead process is started
again, in about 10 s; the longer the checkpoint interval, the longer the recovery, since messages time out later.
Section 3.1: Flink's checkpoints give exactly-once processing; the paper claims it and measures no counts. That Flink
recovered faster than Storm cannot be asked of one engine, and is left out.

A recovery that was not seen to end (censored) proves nothing that would need its length.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from faultline.comparison.findings.finding import MACRO, REPLAY, Claim, Outcome, Verdict, miscounts, tells_tuples, valid
from faultline.comparison.findings.predicates import between, beyond, direction, nothing, series_of, verdict
from faultline.records.record import Record, RecoveryPart
from faultline.records.recoveries import is_repeated

# The paper ends one process of the engine on a random node: here an executor, or a Spark worker with its executors.
PROCESSES = ("executor", "worker", "any")
FLINK_RELOAD_S = (30.0, 60.0)
FLINK_TOTAL_S = 60.0
STORM_RESTART_S = (5.0, 20.0)
NONE_SUCH = "no valid record of such a kill"


def reload_dominates(records: Sequence[Record]) -> Outcome:
    """Reload against replay, for the death of one process of the engine."""
    shares = [
        part.reload_s / (part.reload_s + part.replay_s)
        for part in _parts(records)
        if part.reload_s is not None and part.replay_s is not None and part.reload_s + part.replay_s > 0
    ]
    if not shares:
        return nothing(NONE_SUCH)
    said = f"reload is {min(shares):.0%} to {max(shares):.0%} of reload + replay (n = {len(shares)})"
    larger = beyond(shares, 0.5)
    return Outcome(verdict(larger.holds), said, larger.p)


def reload_waits_for_heartbeats(records: Sequence[Record]) -> Outcome:
    """The length of the reload, and how much of it is detection."""
    parts = [part for part in _parts(records) if part.reload_s is not None and part.detection_s is not None]
    if not parts:
        return nothing(NONE_SUCH)
    reloads = [float(part.reload_s or 0) for part in parts]
    detections = [float(part.detection_s or 0) for part in parts]
    detection_s = statistics.median(detections)
    how = ": a broken connection is noticed, no heartbeat is waited for" if detection_s < 1 else ""
    reload_s = statistics.median(reloads)
    said = f"median reload {reload_s:.1f} s, of which detection {detection_s:.2f} s{how} (n = {len(parts)})"
    as_long = between(reloads, *FLINK_RELOAD_S)
    mostly_waiting = beyond(
        [part / whole if whole else 0.0 for part, whole in zip(detections, reloads, strict=True)], 0.5
    )
    both = (as_long, mostly_waiting)
    against = [one.p for one in both if one.holds is False]
    if against:
        return Outcome(Verdict.DISAGREES, said, min(against))
    return Outcome(verdict(all(one.holds for one in both) or None), said, max(one.p for one in both))


def total_within_a_minute(records: Sequence[Record]) -> Outcome:
    """Whether every recovery ended in time; one that was watched for less than a minute proves nothing.

    A run with several recoveries counts once, by its longest.
    """
    runs = [_recoveries(record) for record in _of_processes(records)]
    if not runs:
        return nothing(NONE_SUCH)
    known = [max(part.censored_at_s or 0.0 if part.macro_s is None else part.macro_s for part in run) for run in runs]
    ended = [part.macro_s for run in runs for part in run if part.macro_s is not None]
    open_ended = sum(part.macro_s is None for run in runs for part in run)
    said = f"longest macro recovery {max(ended, default=0.0):.1f} s, {open_ended} not seen to end (n = {len(runs)})"
    if any(time > FLINK_TOTAL_S for time in known):
        return Outcome(Verdict.DISAGREES, said)
    if open_ended:
        return Outcome(Verdict.CANNOT_TELL, said)
    longer = beyond(known, FLINK_TOTAL_S)
    return Outcome(verdict(True if longer.holds is False else None), said, longer.p)


def replay_grows_with_state(records: Sequence[Record]) -> Outcome:
    """Replay along the state, victim by victim and interval by interval."""
    return direction(series_of(_of_processes(records), "state_mb", REPLAY.read), REPLAY, rises=True)


def restart_takes_ten_seconds(records: Sequence[Record]) -> Outcome:
    """How long it takes until a replaced executor has registered."""
    executors = [record for record in _killed(records) if record.config["fault"] == "executor"]
    ups = [record.metrics.recovery.replacement_up_s for record in executors]
    known = [up for up in ups if up is not None]
    if not known:
        return nothing(NONE_SUCH)
    said = f"the replacement is up after {min(known):.1f} to {max(known):.1f} s (n = {len(known)})"
    within = between(known, *STORM_RESTART_S)
    return Outcome(verdict(within.holds), said, within.p)


def recovery_grows_with_the_interval(records: Sequence[Record]) -> Outcome:
    """Macro recovery along the interval, victim by victim."""
    return direction(series_of(_killed(records), "checkpoint_interval_s", MACRO.read), MACRO, rises=True)


def exactly_once(records: Sequence[Record]) -> Outcome:
    """Whether the state counted every record exactly once after a kill; one miscount is enough to disagree. Counts
    alone cannot show that it did: one that was lost and one that was counted twice make no difference to them."""
    there = [record for record in _killed(records) if record.config.get("commit_mode") != "none"]
    audited = [record for record in there if record.metrics.audit.lost is not None]
    if not audited:
        return nothing("no audited kill with checkpoints")
    faults, known = miscounts(audited), sum(tells_tuples(record) for record in audited)
    told = ", ".join(f"{number:,} {name}" for name, number in faults.items())
    said = f"{told} (n = {len(audited)}, of which {known} tell which tuples were counted)"
    if undrained := sum(record.metrics.audit.undrained or 0 for record in audited):
        said += f"; {undrained:,} offsets were not processed, which is no loss"
    if any(faults.values()):
        return Outcome(Verdict.DISAGREES, said)
    return Outcome(verdict(True if len(audited) == known > 1 else None), said)


def _killed(records: Sequence[Record]) -> list[Record]:
    """The valid ones in which something was killed and its recovery was watched."""
    return [
        record
        for record in valid(records)
        if record.config.get("fault") != "none"
        and record.config.get("fault_action") == "kill"
        and record.metrics.recovery.recovered is not None
    ]


def _of_processes(records: Sequence[Record]) -> list[Record]:
    """Those in which one process of the engine was killed."""
    return [record for record in _killed(records) if record.config["fault"] in PROCESSES]


def _parts(records: Sequence[Record]) -> list[RecoveryPart]:
    """The recoveries from the death of one process of the engine: one for each run, the median where it has several."""
    return [record.metrics.recovery for record in _of_processes(records)]


def _recoveries(record: Record) -> list[RecoveryPart]:
    """Each recovery of a run that repeats one fault; of any other run the one from its first fault."""
    several = [part for part in record.metrics.recoveries if part.recovered is not None]
    return several if is_repeated(record.config) and several else [record.metrics.recovery]


RECOVERY = (
    Claim("Flink: reload takes the larger part of a recovery", "5.3, figure 8", reload_dominates),
    Claim(
        "Flink: reload takes about 45 s, because the loss is noticed by a heartbeat's timeout",
        "5.3, figure 8",
        reload_waits_for_heartbeats,
    ),
    Claim("Flink: a recovery takes less than 60 s", "5.3, figure 8", total_within_a_minute),
    Claim("Flink: replay grows with the state", "5.3, figure 8(b)", replay_grows_with_state),
    Claim("Flink: every record is counted exactly once in spite of the failure", "3.1", exactly_once),
    Claim("Storm: starting the dead process again takes about 10 s", "5.3", restart_takes_ten_seconds),
    Claim("Storm: recovery grows with the checkpoint interval", "5.3, figure 9(b)", recovery_grows_with_the_interval),
)
