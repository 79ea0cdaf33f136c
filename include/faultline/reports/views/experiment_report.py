"""Report about one attempt as values and texts: events, faults, restarts, and recoveries with their parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from faultline.records.format import NONE, count, seconds, share, signed
from faultline.records.record import Record, RecoveryPart
from faultline.records.recoveries import is_repeated

Pairs = list[tuple[str, str]]


@dataclass(frozen=True)
class ReportEvent:
    """One event, in seconds after T0 (start barrier) and after t0 (fault), None if unknown; `source`: evidence."""

    name: str
    words: str
    after_gate_s: float | None
    after_fault_s: float | None
    source: str

    @property
    def letter(self) -> str:
        """`t0` to `t7` for one of the defined instants of a recovery; else empty."""
        plain = self.name.partition("#")[0]
        return plain if len(plain) == 2 and plain[0] == "t" and plain[1].isdigit() else ""

    @property
    def after_gate(self) -> str:
        """Seconds after T0."""
        return seconds(self.after_gate_s, 3)

    @property
    def after_fault(self) -> str:
        """Seconds after the fault, signed."""
        return NONE if self.after_fault_s is None else signed(self.after_fault_s)


@dataclass(frozen=True)
class RecoverySpan:
    """Part of a recovery, in seconds after t0. `seen`: False for the time until the end of a censored observation."""

    name: str
    start_s: float
    length_s: float
    seen: bool = True


@dataclass(frozen=True)
class InjectionReport:
    """Injection of one planned fault, from the journal of the fault scheduler.

    `planned_at_s`: seconds after T0; `late_ms`: actual − planned instant of the last delivery; `undone`: undo actions.
    """

    planned_at_s: float | None
    late_ms: float | None
    victims: tuple[str, ...]
    outcome: str | None
    detail: str
    undone: tuple[str, ...]


@dataclass(frozen=True)
class FaultReport:
    """One fault: `number` from 1, `what`: plan in words, `verdict`: outcome in words."""

    number: int
    what: str
    verdict: str
    recovery: RecoveryPart
    spans: tuple[RecoverySpan, ...]
    snapshot_age_s: float | None
    events: tuple[ReportEvent, ...]
    injection: InjectionReport | None

    @property
    def headline(self) -> str:
        """Verdict, capitalized."""
        return self.verdict[:1].upper() + self.verdict[1:]

    @property
    def is_censored(self) -> bool:
        """Whether the recovery is censored."""
        return self.recovery.recovered is False

    @property
    def total_s(self) -> float:
        """Seconds from the fault to the end of the last span."""
        return max((span.start_s + span.length_s for span in self.spans), default=0.0)

    @property
    def facts(self) -> Pairs:
        """Injection, outcome and impact; unknown values are omitted."""
        injection, recovery, pairs = self.injection, self.recovery, []
        if injection is not None:
            late = "" if injection.late_ms is None else f" (actual {signed(injection.late_ms, 2)} ms)"
            planned = "" if injection.planned_at_s is None else f"T0 + {seconds(injection.planned_at_s, 3)} s{late}"
            pairs += [
                ("Victim", "; ".join(injection.victims)),
                ("Planned", planned),
                ("Outcome", ": ".join(str(text) for text in (injection.outcome, injection.detail) if text)),
                ("Undo", "; ".join(injection.undone)),
            ]
        if (trigger := recovery.trigger) is not None:
            pairs.append((
                "Injected",
                f"{seconds(trigger.waited_s)} s after the previous fault: engine normal after "
                f"{seconds(trigger.normal_s)} s, then {count(trigger.baseline_commits)} baseline commits",
            ))  # fmt: skip
        drift_s, note = recovery.drift_since_first_s, recovery.note if recovery.recovered is not None else None
        known = (
            (
                "With the first baseline",
                None if drift_s is None else -drift_s,
                lambda value: f"{signed(value, 2)} s",
            ),
            ("Remark", note, str),
            ("Snapshot", self.snapshot_age_s, lambda value: f"{seconds(value)} s old at the fault"),
            ("Dip", recovery.dip_depth, lambda value: f"{share(value)} below the baseline throughput"),
            ("Job restarts", recovery.restarts, lambda value: count(value)),
            ("Longest silence", recovery.silence_s, lambda value: f"{seconds(value, 2)} s"),
            ("Lag area", recovery.lag_area_record_s, lambda value: f"{count(value)} record·s"),
        )
        pairs += [(name, text(value)) for name, value, text in known if value is not None]
        return [(name, value) for name, value in pairs if value]


@dataclass(frozen=True)
class RestartReport:
    """One restart: the component `who` restarted the process `what`. `after_gate_s`: seconds after T0."""

    after_gate_s: float | None
    who: str
    what: str
    source: str

    @property
    def after_gate(self) -> str:
        """Seconds after T0."""
        return seconds(self.after_gate_s, 3)


@dataclass(frozen=True)
class ExperimentReport:
    """Whole report. `offenders`: the first keys whose output differs from the batch recomputation."""

    attempt_events: tuple[ReportEvent, ...] = ()
    faults: tuple[FaultReport, ...] = ()
    restarts: tuple[RestartReport, ...] = ()
    offenders: tuple[Mapping[str, Any], ...] = ()
    remarks: tuple[str, ...] = ()


# Recovery parts in order: key, name, colour; the last one ends at t7.
PARTS = (
    ("detection_s", "detection", "#5B4B9A"),
    ("redeploy_s", "redeploy", "#3F72A8"),
    ("load_s", "load", "#2A9D9D"),
    ("replay_s", "replay", "#52B788"),
    ("catchup_s", "catch-up", "#A7C957"),
    ("settling", "stabilization", "#E9C46A"),
)


def parts_of(record: Record) -> list[RecoveryPart]:
    """Return the recovery from each injection, in order; empty for control runs."""
    parts = record.metrics.recoveries or [record.metrics.recovery]
    return [part for part in parts if part.recovered is not None]


def repeated_parts(record: Record) -> list[RecoveryPart]:
    """Return the recoveries behind the medians of a run with repeated injections; empty for other runs."""
    parts = parts_of(record) if is_repeated(record.config) else []
    return parts if len(record.metrics.recoveries) > 1 else []


def recovery_lines(record: Record) -> list[str]:
    """Return `recovery 2: detected after 0.3 s; state loaded after 5.2 s; caught up after 12.1 s; …`."""
    parts = parts_of(record)
    lines = [
        f"{f'recovery {injection_number(part, number)}: ' if len(parts) > 1 else ''}{_text(part)}"
        for number, part in enumerate(parts, start=1)
    ]
    notes = [
        f"recovery {injection_number(part, number)} does not count: {part.note}"
        for number, part in enumerate(record.metrics.recoveries, start=1)
        if part.note is not None
    ]
    return [*lines, *notes]


def injection_number(part: RecoveryPart, place: int) -> int:
    """Return the number of the injection, or `place`, the number of the fault in its plan; both count from 1."""
    return part.injection or place


def _text(part: RecoveryPart) -> str:
    caught_up_s = None if part.reload_s is None or part.replay_s is None else part.reload_s + part.replay_s
    seen = (
        ("detected", part.detection_s),
        ("state loaded" if part.load_s else "running again", part.reload_s),
        ("caught up", caught_up_s),
        ("recovered", part.macro_s),
    )
    known = [f"{name} after {seconds:.1f} s" for name, seconds in seen if seconds is not None]
    if part.censored_at_s is not None:
        known.append(f"not recovered after {part.censored_at_s:.1f} s")
    return "; ".join(known) or "no recovery event known"


def part_lengths(recovery: RecoveryPart) -> dict[str, float]:
    """Return the length of each known part in s; `settling` ends at t7, `unseen` at the end of the observation."""
    known = {name: getattr(recovery, name, None) for name, _, _ in PARTS}
    lengths = {name: round(float(value), 3) for name, value in known.items() if value is not None}
    total = sum(lengths.values())
    if recovery.macro_s is not None:
        lengths["settling"] = round(max(0.0, recovery.macro_s - total), 3)
    elif recovery.censored_at_s is not None:
        lengths["unseen"] = round(max(0.0, recovery.censored_at_s - total), 3)
    return lengths
