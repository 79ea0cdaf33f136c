"""An attempt over time, and what of it was out of its bound after a fault.

`series.json` has the curves as the judge left them; a bundle that was unpacked has none, so they are made of the raw
files. The record says which signal was the last one out, and the bounds; how far it was out stands in the curves.
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
FILE_GONE = "is missing, because the attempt was not judged or its raw files were removed"
_TUPLES = Path("harvest", "tuples.parquet")
# A page is loaded more than once, and making them takes a second.
_CACHE_SIZE = 8
# How the timeline's evidence of the last thing out of its bound begins, by signal.
_SIGNALS = {"tuples later": LATENCY, "lag above": LAG, "not caught up": COVERED, "no commit": COVERED}


def has_curves(folder: Path) -> bool:
    """Whether `read_curves` has something to read in the attempt's folder."""
    return any((folder / name).exists() for name in (FILE, _TUPLES))


def read_curves(folder: Path) -> Any:
    """The content of `series.json`, or what it would be.

    Raises FileNotFoundError where there are no raw files either, InfrastructureError naming the raw file that nothing
    can be made of, and OSError, ValueError or RecursionError for a `series.json` that cannot be read.
    """
    try:
        return renamed_series(json.loads((folder / FILE).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return _judge_curves(folder, (folder / _TUPLES).stat().st_mtime_ns)


@functools.lru_cache(maxsize=_CACHE_SIZE)
def _judge_curves(folder: Path, mtime_ns: int) -> Any:
    # Most pages need nothing that judges.
    from faultline.records.judge.judge import judged

    return judged(folder).course


def try_read_curves(folder: Path) -> tuple[Mapping[str, Any] | None, str]:
    """The curves; or None and why, with `is missing` where there is nothing to make them of."""
    try:
        found = read_curves(folder)
    except FileNotFoundError:
        return None, FILE_GONE
    except (OSError, ValueError, RecursionError) as error:
        return None, f"cannot be read ({type(error).__name__})"
    except (FaultlineError, KeyError, TypeError, AttributeError, IndexError) as error:
        return None, f"is missing, and cannot be made of the raw files ({type(error).__name__}: {error})"
    return found, ""


@dataclass(frozen=True)
class RecoveryBounds:
    """The bounds of the recovery from one fault. `from_s`, `until_s`: the fault, and where it was over or no longer
    watched, in seconds after T0. `latency_ms`: None where no output tells of which input it is."""

    latency_ms: float | None
    lag: float
    from_s: float
    until_s: float


def recovery_bounds(record: Record) -> list[RecoveryBounds]:
    """Those of each fault that struck and has bounds, in order."""
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
    """Spans of seconds after T0 in which the p99 of what was emitted lay above L*, from the fault on; what came after a
    silence was late during it."""
    if bound.latency_ms is None:
        return []
    return _spans(((point["t_s"], point["t_s"] + 1, point["p99_ms"]) for point in points), bound.latency_ms, bound)


def lag_violations(points: Sequence[Mapping[str, Any]], bound: RecoveryBounds) -> list[tuple[float, float]]:
    """Spans of seconds after T0 that ended in a commit with a lag above lag*, from the fault on."""
    return _spans(((point["t_s"], point["t_s"], point["records"]) for point in points), bound.lag, bound)


def _spans(values: Iterable[tuple[Any, Any, Any]], limit: float, bound: RecoveryBounds) -> list[tuple[float, float]]:
    """Each value tells of the time since the one before; neighbours that are out are one span."""
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
    """What kept the recovery from fault `number` from its end when it was last known not to be over: `latency was
    6,120 ms, 53 % above the bound L* of 4,012 ms`. Empty where nobody knows."""
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
            "tuples came later than", "latency was", bound, part.latency_limit_ms, seen, milliseconds, "ms"
        )
    if signal == LAG:
        bound = f"lag* of {count(part.lag_limit)} records"
        return _violation_text("lag was above", "lag was", bound, part.lag_limit, seen, count, "records")
    if signal == COVERED:
        return "no commit had covered what was there at the fault"
    return ""


def plateau_text(part: RecoveryPart) -> str:
    """How the tail of latency at the end compares with before the fault; empty where it is not known."""
    if part.plateau_ratio is None:
        return ""
    held = "" if part.hold_s is None else f" of the last {part.hold_s:.0f} s"
    return f"p99{held} was {part.plateau_ratio:.1f} × that before the fault"


def _violation_text(
    unknown: str, known: str, bound: str, limit: float, seen: float | None, text: Callable[[float], str], unit: str
) -> str:
    if seen is None or seen <= limit or limit <= 0:
        return f"{unknown} the bound {bound}"
    times = seen / limit
    by = f"{(times - 1) * 100:.0f} % above" if times < 3 else f"{times:.1f} times"
    return f"{known} {text(seen)} {unit}, {by} the bound {bound}"


def _value_at(series: Mapping[str, Any], signal: str | None, at_s: float) -> float | None:
    """What the signal was at that instant, by the course of the attempt."""
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
