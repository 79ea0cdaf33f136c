"""The recoveries of one record: in words, one line each, and in their parts."""

from __future__ import annotations

from faultline.records.record import Record, RecoveryPart
from faultline.records.recoveries import is_repeated

# Parts of a recovery in order; the last one ends at t7.
PARTS = (
    ("detection_s", "detection", "#5B4B9A"),
    ("redeploy_s", "redeploy", "#3F72A8"),
    ("load_s", "load", "#2A9D9D"),
    ("replay_s", "replay", "#52B788"),
    ("catchup_s", "catch-up", "#A7C957"),
    ("settling", "until all normal", "#E9C46A"),
)


def parts_of(record: Record) -> list[RecoveryPart]:
    """The recovery from each injection, in order; of a record from before there were several, its one; of a control
    none."""
    parts = record.metrics.recoveries or [record.metrics.recovery]
    return [part for part in parts if part.recovered is not None]


def repeated_parts(record: Record) -> list[RecoveryPart]:
    """The recoveries whose medians are the run's own figures: those of one fault that was injected several times; none
    of any other run."""
    parts = parts_of(record) if is_repeated(record.config) else []
    return parts if len(record.metrics.recoveries) > 1 else []


def recovery_lines(record: Record) -> list[str]:
    """`recovery 2: detected after 0.3 s; state loaded after 5.2 s; caught up after 12.1 s; as before after 14.0 s`."""
    parts = parts_of(record)
    told = [
        f"{f'recovery {number_of(part, number)}: ' if len(parts) > 1 else ''}{_text(part)}"
        for number, part in enumerate(parts, start=1)
    ]
    notes = [
        f"recovery {number_of(part, number)} does not count: {part.note}"
        for number, part in enumerate(record.metrics.recoveries, start=1)
        if part.note is not None
    ]
    return [*told, *notes]


def number_of(part: RecoveryPart, place: int) -> int:
    """The number of the injection; of other faults of a plan the `place` among them, from 1."""
    return part.injection or place


def _text(part: RecoveryPart) -> str:
    caught_up_s = None if part.reload_s is None or part.replay_s is None else part.reload_s + part.replay_s
    seen = (
        ("detected", part.detection_s),
        ("state loaded" if part.load_s else "running again", part.reload_s),
        ("caught up", caught_up_s),
        ("as before", part.macro_s),
    )
    known = [f"{name} after {seconds:.1f} s" for name, seconds in seen if seconds is not None]
    if part.censored_at_s is not None:
        known.append(f"not yet as before after {part.censored_at_s:.1f} s")
    return "; ".join(known) or "no instant of it is known"


def part_lengths(recovery: RecoveryPart) -> dict[str, float]:
    """Length in seconds of each known part of PARTS; `settling` up to t7, or `unseen` up to where watching ended."""
    known = {name: getattr(recovery, name, None) for name, _, _ in PARTS}
    lengths = {name: round(float(value), 3) for name, value in known.items() if value is not None}
    total = sum(lengths.values())
    if recovery.macro_s is not None:
        lengths["settling"] = round(max(0.0, recovery.macro_s - total), 3)
    elif recovery.censored_at_s is not None:
        lengths["unseen"] = round(max(0.0, recovery.censored_at_s - total), 3)
    return lengths
