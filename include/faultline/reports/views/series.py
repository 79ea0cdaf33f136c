"""Curves of an attempt over time, and the spans in which they violate the recovery thresholds.

The judge writes the curves to `series.json`. Unpacked bundles lack this file, so the curves are computed from raw
files. The record contains the thresholds, and the signal (latency, lag or progress) that violated its threshold last;
the curves show by how much.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faultline.records.format import count, milliseconds
from faultline.records.record import Record, RecoveryPart
from faultline.records.renames import renamed_series
from faultline.system.errors import FaultlineError

NS = 1e9
LATENCY, LAG, COVERED = "latency", "lag", "covered"
FILE = "series.json"
FILE_GONE = "is missing; the attempt was not judged, or its raw files were removed"
_TUPLES = Path("harvest", "tuples.parquet")
# Computing curves takes a second, and pages are reloaded.
_CACHE_SIZE = 8
# Prefixes of the timeline's evidence for the last violation, by signal.
_SIGNALS = {"tuples later": LATENCY, "lag above": LAG, "not caught up": COVERED, "no commit": COVERED}


def has_curves(folder: Path) -> bool:
    """Return whether the attempt's folder contains a file that `read_curves` can read."""
    return any((folder / name).exists() for name in (FILE, _TUPLES))


def read_curves(folder: Path) -> Any:
    """Return the content of `series.json`, computed if the file is missing.

    Raises FileNotFoundError if the raw files are also missing; InfrastructureError if a raw file is unusable; OSError,
    ValueError or RecursionError if `series.json` is unreadable.
    """
    try:
        return renamed_series(json.loads((folder / FILE).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return _judge_curves(folder, (folder / _TUPLES).stat().st_mtime_ns)


@functools.lru_cache(maxsize=_CACHE_SIZE)
def _judge_curves(folder: Path, mtime_ns: int) -> Any:
    # Imported here because most pages do not need the judge.
    from faultline.records.judge.judge import judge_readonly

    return judge_readonly(folder).time_series


def try_read_curves(folder: Path) -> tuple[Mapping[str, Any] | None, str]:
    """Return the curves, or None and the cause."""
    try:
        found = read_curves(folder)
    except FileNotFoundError:
        return None, FILE_GONE
    except (OSError, ValueError, RecursionError) as error:
        return None, f"cannot be read ({type(error).__name__})"
    except (FaultlineError, KeyError, TypeError, AttributeError, IndexError) as error:
        return None, f"is missing, and the raw files are unusable ({type(error).__name__}: {error})"
    return found, ""


@dataclass(frozen=True)
class RecoveryBounds:
    """Recovery thresholds of one fault.

    `latency_ms`: None if outputs do not identify their input. `from_s`: time of the fault; `until_s`: time of the
    recovery or end of the observation; both in seconds after T0.
    """

    latency_ms: float | None
    lag: float
    from_s: float
    until_s: float


def recovery_bounds(record: Record) -> list[RecoveryBounds]:
    """Return the thresholds of each injected fault that has any, in order."""
    at = {event.name: event.wall_ns for event in record.timeline}
    gate = at.get("gate")
    metrics = record.metrics
    parts = metrics.recoveries or ([metrics.recovery] if metrics.recovery.recovered is not None else [])
    found = []
    for number, part in enumerate(parts, start=1):
        strike = at.get(_event_name("t0", number))
        end_s = part.macro_s if part.macro_s is not None else part.censored_at_s
        if None in (gate, strike, end_s, part.lag_limit):
            continue
        from_s = (float(strike or 0) - float(gate or 0)) / NS
        found.append(
            RecoveryBounds(part.latency_limit_ms, float(part.lag_limit or 0), from_s, from_s + float(end_s or 0))
        )
    return found


def latency_violations(points: Sequence[Mapping[str, Any]], bound: RecoveryBounds) -> list[tuple[float, float]]:
    """Return the spans in seconds after T0 with a p99 above L*, from the fault on.

    Outputs that follow a silence extend the span over the silence.
    """
    if bound.latency_ms is None:
        return []
    return _spans(((point["t_s"], point["t_s"] + 1, point["p99_ms"]) for point in points), bound.latency_ms, bound)


def lag_violations(points: Sequence[Mapping[str, Any]], bound: RecoveryBounds) -> list[tuple[float, float]]:
    """Return the spans in seconds after T0 that end in a commit with a lag above lag*, from the fault on."""
    return _spans(((point["t_s"], point["t_s"], point["records"]) for point in points), bound.lag, bound)


def _spans(values: Iterable[tuple[Any, Any, Any]], limit: float, bound: RecoveryBounds) -> list[tuple[float, float]]:
    """Return the spans above `limit`; a value applies to the time since the previous one; adjacent spans are merged."""
    found: list[tuple[float, float]] = []
    before = -math.inf
    for begin, end, value in values:
        known = None not in (begin, end, value) and math.isfinite(begin) and math.isfinite(value)
        if known and value > limit and end > bound.from_s and begin < bound.until_s:
            left, right = max(before if math.isfinite(before) else begin, bound.from_s), float(end)
            if found and left <= found[-1][1]:
                found[-1] = (found[-1][0], right)
            else:
                found.append((left, right))
        before = float(end) if known else before
    return found


def last_violation_text(record: Record, number: int, part: RecoveryPart, series: Mapping[str, Any] | None) -> str:
    """Return the last violation before the recovery from fault `number` ended; empty if unknown.

    Example: `latency was 6,120 ms, 53 % above the threshold L* of 4,012 ms`.
    """
    event = next((one for one in record.timeline if one.name == _event_name("last_violation", number)), None)
    if event is None or part.lag_limit is None:
        return ""
    signal = next((name for begin, name in _SIGNALS.items() if event.source.startswith(begin)), None)
    gate = next((one.wall_ns for one in record.timeline if one.name == "gate"), None)
    at_s = None if gate is None else (event.wall_ns - gate) / NS
    seen = None if at_s is None or series is None else _value_at(series, signal, at_s)
    if signal == LATENCY and part.latency_limit_ms is not None:
        bound = f"L* of {milliseconds(part.latency_limit_ms)} ms"
        return _violation_text(
            "latency was above", "latency was", bound, part.latency_limit_ms, seen, milliseconds, "ms"
        )
    if signal == LAG:
        bound = f"lag* of {count(part.lag_limit)} records"
        return _violation_text("lag was above", "lag was", bound, part.lag_limit, seen, count, "records")
    if signal == COVERED:
        return "no commit had covered the input present at the fault"
    return ""


def plateau_text(part: RecoveryPart) -> str:
    """Return the ratio of the final tail latency to that before the fault; empty if unknown."""
    if part.plateau_ratio is None:
        return ""
    span = "" if part.hold_s is None else f" of the last {part.hold_s:.0f} s"
    return f"p99{span} was {part.plateau_ratio:.1f} × that before the fault"


def _violation_text(
    unknown: str, known: str, bound: str, limit: float, seen: float | None, text: Callable[[float], str], unit: str
) -> str:
    if seen is None or seen <= limit or limit <= 0:
        return f"{unknown} the threshold {bound}"
    times = seen / limit
    by = f"{(times - 1) * 100:.0f} % above" if times < 3 else f"{times:.1f} times"
    return f"{known} {text(seen)} {unit}, {by} the threshold {bound}"


def _value_at(series: Mapping[str, Any], signal: str | None, at_s: float) -> float | None:
    """Return the value of the signal at that instant."""
    try:
        if signal == LATENCY:
            near = [one for one in series["latency"] if one["t_s"] <= at_s < one["t_s"] + 1]
            return max((float(one["max_ms"]) for one in near), default=None)
        if signal == LAG:
            return next((float(one["records"]) for one in series["lag"] if abs(one["t_s"] - at_s) < 0.01), None)
    except (KeyError, TypeError, ValueError):
        return None
    return None


def _event_name(name: str, number: int) -> str:
    return name if number == 1 else f"{name}#{number}"
