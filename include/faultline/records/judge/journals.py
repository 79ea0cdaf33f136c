"""Journals of the generator and the fault scheduler; those of the scheduler by fault."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from faultline.engines.protocol import offsets_by_partition
from faultline.records.record import EndedEarlyPart, InjectionsPart, ScheduleLagMs, TriggerPart, WarmupPart
from faultline.system.journal import Events, Line

LEFT_OUT = "left-out"


@dataclass(frozen=True)
class SettledFault:
    """Outcome of a planned fault: `effective`, `no-effect`, `missed-window` or `unknown`; None if undetermined.

    LEFT_OUT: a later injection without a measurable recovery, which does not affect the others.
    """

    outcome: str | None
    detail: str = ""


@dataclass(frozen=True)
class InjectedFault:
    """Planned fault. `t0_ns`: first delivery, None without one.

    `victims`: lines of its victims. `end_offsets`: of the broker before the signal; None if they arrived too late.
    `undone`: lines on the end of an injection with a duration. `trigger`: of a later injection.
    """

    index: int
    t0_ns: int | None
    victims: tuple[Line, ...]
    end_offsets: Mapping[str, int] | None
    undone: tuple[Line, ...]
    settled: SettledFault
    trigger: TriggerPart | None = None

    def name(self, event: str) -> str:
        """Return the event's name on the record's timeline: that of the second fault on carries its number."""
        return event if self.index == 0 else f"{event}#{self.index + 1}"


@dataclass(frozen=True)
class GeneratorLog:
    """The generator's journal. `death`: why it did not reach its end; None when it did.

    `end_offsets`: of the input; None without an end. `schedule_lag`: how late it sent, over the whole run. `unknown`:
    sends without acknowledgement. `latest`: of each second its end and the largest schedule lag in ms. `data`: of the
    user's, as it was replayed.
    """

    death: str | None
    end_offsets: Mapping[str, int] | None
    schedule_lag: ScheduleLagMs
    unknown: int | None
    latest: tuple[tuple[int, float], ...]
    data: Mapping[str, Any] | None


@dataclass(frozen=True)
class ConductorLog:
    """Journal of the fault scheduler.

    `injected`: each planned fault, without abandoned ones. `death`: why it did not finish.
    `bounds`: lines on a variable begin and end of the measured window; `begin_source`, `end_source`: their reasons.
    `injections`: planned and made. `warmup`: None for a fixed length. `clocks`: readings of other hosts' clocks.
    `signalled`: processes that received a signal.
    """

    injected: tuple[InjectedFault, ...]
    death: str | None
    bounds: tuple[Line, ...]
    begin_source: str
    end_source: str
    injections: InjectionsPart
    warmup: WarmupPart | None
    clocks: tuple[Line, ...]
    signalled: tuple[Any, ...]

    @property
    def adaptive(self) -> bool:
        """True if the warm-up lasted until the engine was steady."""
        return bool(self.bounds)


def read_generator(events: Events) -> GeneratorLog:
    """Read the generator's journal."""
    done = events["done"][-1] if events["done"] else None
    lag = {} if done is None else done["schedule_lag_ms"]
    return GeneratorLog(
        death=_death(events),
        end_offsets=None if done is None else offsets_by_partition(done["end_offsets"]),
        schedule_lag=ScheduleLagMs(p50=lag.get("p50"), p99=lag.get("p99"), max=lag.get("max")),
        unknown=None if done is None else int(done["unknown"]),
        latest=tuple(
            (int(line["wall_ns"]), float(line["latest_ms"])) for line in events["progress"] if "latest_ms" in line
        ),
        data=next((line["data"] for line in events["primed"] if line.get("data")), None),
    )


def read_conductor(events: Events, planned: int, warmup_max_s: float | None = None) -> ConductorLog:
    """Read the fault scheduler's journal of a run with `planned` faults. `warmup_max_s`: latest end of the warm-up.

    Injections that were not made because the engine was not steady are omitted; other missing faults are not.
    """
    begun, ended, given_up = (
        events[name][-1] if events[name] else None for name in ("measured_from", "measured_until", "not_normal")
    )
    made = planned if given_up is None else min(planned, int(given_up["fault"]))
    early = None if given_up is None else {name: given_up.get(name) for name in EndedEarlyPart.model_fields}
    return ConductorLog(
        injected=tuple(_injected(events, index) for index in range(made)),
        death=_death(events),
        bounds=tuple(line for line in (begun, ended) if line is not None),
        begin_source=_begin_source(begun),
        end_source="conductor.jsonl: the last recovery was over, or the next injection was given up"
        if ended is not None
        else f"{'T0 + warmup_s' if begun is None else 'measured_from'} + duration_s",
        injections=InjectionsPart.model_validate({"planned": planned, "made": made, "ended_early": early}),
        warmup=None
        if begun is None
        else WarmupPart(waited_s=begun.get("waited_s"), steady=begun.get("steady"), bound_s=warmup_max_s),
        clocks=tuple(events["clock"]),
        signalled=tuple(line.get("victim") for line in events["delivered"]),
    )


def _begin_source(begun: Line | None) -> str:
    """Return why the measured window begins where it does."""
    if begun is None:
        return "T0 + warmup_s"
    over = f"over {begun['commits']} commits" if begun.get("commits") else "over the last commits"
    steady = f"latency and lag were steady {over}" if begun.get("steady") else "not steady yet at warmup_max_s"
    return f"conductor.jsonl: {steady}"


def _death(events: Events) -> str | None:
    """Return why a process that should have ended with `done` did not."""
    if events["failed"]:
        return str(events["failed"][-1].get("message", "failed"))
    return None if events["done"] else "it never reported `done`"


def _injected(events: Events, index: int) -> InjectedFault:
    def own(name: str) -> list[Line]:
        return [line for line in events[name] if line.get("fault", 0) == index]

    delivered, settled = own("delivered"), own("settled")
    # An answer that came after the signal holds records that were not there at the signal.
    offsets = [line for line in own("end_offsets") if line.get("before_signal", True)]
    triggers = [line for line in events["injection"] if line.get("fault") == index]
    reason = {name: triggers[-1].get(name) for name in TriggerPart.model_fields} if triggers else None
    outcome = settled[-1] if settled else {"outcome": None}
    return InjectedFault(
        index=index,
        t0_ns=min((int(line["wall_ns"]) for line in delivered), default=None),
        victims=_victims(events["victims"], index, delivered),
        end_offsets=offsets_by_partition(offsets[0]["offsets"]) if offsets else None,
        undone=tuple(own("undone")),
        settled=SettledFault(outcome["outcome"], str(outcome.get("detail") or "")),
        trigger=None if reason is None else TriggerPart.model_validate(reason),
    )


def _victims(lines: Sequence[Line], index: int, delivered: Sequence[Line]) -> tuple[Line, ...]:
    """Return the victims that were hit, each once; the role that the delivery names is the real one.

    A victim may be chosen again shortly before the act: the last line about a process counts.
    """
    roles = {line.get("victim"): line.get("role") for line in delivered}
    found: dict[tuple[str, int | None], Line] = {}
    for line in lines:
        for victim in line["victims"]:
            pid = victim.get("pid")
            if victim.get("fault", line.get("fault", 0)) == index and pid in roles:
                found[str(victim.get("host") or ""), pid] = {**victim, "role": roles[pid] or victim.get("role")}
    return tuple(found.values())
