"""How one run went, by the conductor's journal: when it was measured, why then, and how many injections were made."""

from __future__ import annotations

from faultline.records.judge.observations import Measured
from faultline.records.judge.recovery.recoveries import is_repeated
from faultline.records.record import EndedEarlyPart, InjectionsPart, WarmupPart
from faultline.system.journal import last


def injections_of(measured: Measured) -> InjectionsPart | None:
    """How many injections were planned and made, and which signal kept the others from it; None for a single one."""
    if not is_repeated(measured):
        return None
    given_up = last(measured.raw.conductor, event="not_normal")
    return InjectionsPart(
        planned=len(measured.raw.planned),
        made=len(measured.injected),
        ended_early=None
        if given_up is None
        else EndedEarlyPart.model_validate({name: given_up.get(name) for name in EndedEarlyPart.model_fields}),
    )


def warmup_of(measured: Measured) -> WarmupPart | None:
    """How long it took until the engine was steady; None where the warm-up has a fixed length."""
    begun = last(measured.raw.conductor, event="measured_from")
    if begun is None:
        return None
    bound_s = measured.raw.attempt.config.warmup_max_s
    return WarmupPart(waited_s=begun.get("waited_s"), steady=begun.get("steady"), bound_s=bound_s)


def begin_source(measured: Measured) -> str:
    """Why the measured window begins where it does."""
    begun = last(measured.raw.conductor, event="measured_from")
    if begun is None:
        return "T0 + warmup_s"
    over = f"over {begun['commits']} commits" if begun.get("commits") else "over the last commits"
    steady = f"latency and lag were steady {over}" if begun.get("steady") else "not steady yet at warmup_max_s"
    return f"conductor.jsonl: {steady}"


def end_source(measured: Measured) -> str:
    """Why it ends where it does."""
    if last(measured.raw.conductor, event="measured_until") is not None:
        return "conductor.jsonl: the last recovery was over, or the next injection was given up"
    begin = "T0 + warmup_s" if last(measured.raw.conductor, event="measured_from") is None else "measured_from"
    return f"{begin} + duration_s"
