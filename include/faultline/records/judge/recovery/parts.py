"""Recovery: the parts between the events of a timeline, their identities, and censoring.

t0 ──detection── t2 ──redeploy── t3 ──load── t4 ──replay── t5 ──catch-up── t6 ── t7
└────────────────── reload ──────────────────┘
└───────────────────────────────── macro ──────────────────────────────────────┘
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from faultline.records.judge.recovery.timeline import CHAIN, Timeline
from faultline.system.window import CLOCK_RESOLUTION_NS, NS

PARTS = {
    "detection_s": ("t0", "t2"),
    "redeploy_s": ("t2", "t3"),
    "load_s": ("t3", "t4"),
    "reload_s": ("t0", "t4"),
    "replay_s": ("t4", "t5"),
    "catchup_s": ("t5", "t6"),
    "macro_s": ("t0", "t7"),
}


@dataclass(frozen=True)
class Recovery:
    """Seconds; None where unknown. All None for a control and for a fault without effect.

    `dip_depth` is a share, `lag_area_record_s` is in record·seconds (see `impact`). What counted as recovered:
    `recovered_within`, a share, `latency_limit_ms` (L*), `lag_limit` (lag*, records) and `hold_s` (H). `plateau_ratio`:
    p99 of the tuples of the last H, in that of those before the fault. `settled_s`: from t0 to when the latency had its
    last level. `phase`: of the fault in its checkpoint cycle. `lateness_ms`: the generator's largest in [t0, t7].
    Of several injections of one fault also which it was, from 1, and `at_s`, its t0 after T0; `drift_since_first_s`:
    macro against its own baseline less macro against the first one; `trigger`: why it came then, from the conductor's
    journal; `note`: what speaks against this recovery alone.
    """

    recovered: bool | None = None
    detection_s: float | None = None
    redeploy_s: float | None = None
    load_s: float | None = None
    reload_s: float | None = None
    replay_s: float | None = None
    catchup_s: float | None = None
    macro_s: float | None = None
    replacement_up_s: float | None = None
    censored_at_s: float | None = None
    resolution_s: float | None = None
    dip_depth: float | None = None
    silence_s: float | None = None
    lag_area_record_s: float | None = None
    recovered_within: float | None = None
    latency_limit_ms: float | None = None
    lag_limit: float | None = None
    hold_s: float | None = None
    plateau_ratio: float | None = None
    settled_s: float | None = None
    phase: float | None = None
    lateness_ms: float | None = None
    injection: int | None = None
    at_s: float | None = None
    drift_since_first_s: float | None = None
    trigger: Mapping[str, Any] | None = None
    note: str | None = None


def measure(timeline: Timeline) -> tuple[Recovery, tuple[str, ...]]:
    """The recovery between the events of `timeline`, and what is wrong with the chain.

    A tail of missing events is censoring: the watch ended first. `last_out` is when the recovery is known not to have
    been over: it lies in (last_out, t7]. A problem is `missing: …` (a gap before an event that was seen) or
    `negative: …`.
    """
    chain, problems = _settle(timeline)
    seen = [name for name in CHAIN if name in chain]
    last = CHAIN.index(seen[-1])
    problems += [f"missing: {name}, though {seen[-1]} was seen" for name in CHAIN[:last] if name not in chain]
    lengths: dict[str, Any] = {
        part: _seconds(chain[end] - chain[begin]) if begin in chain and end in chain else None
        for part, (begin, end) in PARTS.items()
    }
    recovered = "t7" in chain
    if not problems:
        _assert_identities(chain)
    replacement = timeline.get("replacement_up")
    t0_ns = chain["t0"]
    out = timeline.get("last_out")
    out_ns = t0_ns if out is None else max(t0_ns, out.wall_ns)
    return (
        Recovery(
            recovered=recovered,
            replacement_up_s=None if replacement is None else _seconds(replacement.wall_ns - t0_ns),
            censored_at_s=None if recovered else _seconds(out_ns - t0_ns),
            resolution_s=_seconds(max(0, chain["t7"] - out_ns)) if recovered else None,
            **lengths,
        ),
        tuple(problems),
    )


def _settle(timeline: Timeline) -> tuple[dict[str, int], list[str]]:
    """Instants of the chain with differences below the clock's resolution removed, and the negatives."""
    chain: dict[str, int] = {}
    problems: list[str] = []
    before: str | None = None
    for name in CHAIN:
        if name not in timeline:
            continue
        instant = timeline[name].wall_ns
        if before is not None and instant < chain[before]:
            if chain[before] - instant <= CLOCK_RESOLUTION_NS:
                instant = chain[before]
            else:
                problems.append(f"negative: {name} lies {_seconds(chain[before] - instant):.3f} s before {before}")
        chain[name] = instant
        before = name
    return chain, problems


def _assert_identities(chain: dict[str, int]) -> None:
    """reload = detection + redeploy + load; reload + replay + catch-up = t6 − t0 ≤ macro.

    True by construction when the chain is ordered and whole; a failure is a bug of this module.
    """
    instants = [chain[name] for name in CHAIN if name in chain]
    if instants != sorted(instants):
        raise AssertionError(f"the timeline is not ordered: {chain}")
    steps = [later - earlier for earlier, later in zip(instants, instants[1:], strict=False)]
    if sum(steps) != instants[-1] - instants[0]:
        raise AssertionError(f"the parts do not add up: {chain}")


def _seconds(nanoseconds: int) -> float:
    return nanoseconds / NS
