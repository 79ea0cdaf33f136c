"""Journals of the load generator (generator.jsonl) and the fault scheduler (conductor.jsonl), as typed values."""

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
    """Outcome of a planned fault: `effective`, `no-effect`, `missed-window` or `unknown`; None if not recorded.

    LEFT_OUT: a later injection without a measurable recovery, which does not affect the other injections.
    """

    outcome: str | None
    detail: str = ""


@dataclass(frozen=True)
class InjectedFault:
    """Planned fault as executed. `t0_ns`: its first delivery, None without one.

    `victims`: lines on its victims. `end_offsets`: of the broker, read before the signal; None if they arrived later.
    `undo_lines`: lines on its undo. `trigger`: what started a later injection; None for the first.
    """

    index: int
    t0_ns: int | None
    victims: tuple[Line, ...]
    end_offsets: Mapping[str, int] | None
    undo_lines: tuple[Line, ...]
    settled: SettledFault
    trigger: TriggerPart | None = None

    def name(self, event: str) -> str:
        """Return the event's name on the record's timeline; from the second fault on, it ends in `#` and the number."""
        return event if self.index == 0 else f"{event}#{self.index + 1}"


@dataclass(frozen=True)
class GeneratorLog:
    """Content of the generator's journal. `death`: why the generator did not finish; None if it did.

    `end_offsets`: of the input topic; None if it did not finish. `schedule_lag`: actual minus intended send time, over
    the whole run. `unknown`: number of sends without acknowledgement. `latest`: for each second, its end in ns and the
    largest schedule lag in ms. `progress`: its lines of SendProgress. `data`: description of the replayed user data;
    None without.
    """

    death: str | None
    end_offsets: Mapping[str, int] | None
    schedule_lag: ScheduleLagMs
    unknown: int | None
    latest: tuple[tuple[int, float], ...]
    progress: tuple[Line, ...]
    data: Mapping[str, Any] | None


@dataclass(frozen=True)
class SchedulerLog:
    """Content of the fault scheduler's journal.

    `injected`: planned faults, without abandoned injections. `death`: why the scheduler did not finish; None if it did.
    `bounds`: lines on the start and end of the measured window if these depend on the engine, else empty.
    `begin_source`, `end_source`: evidence of both. `injections`: numbers planned and made. `warmup`: None for a fixed
    warm-up. `clocks`: readings of other hosts' clocks. `signalled`: processes that received a signal.
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
        """True if the engine's state determined the start or end of the measured window."""
        return bool(self.bounds)


def read_generator_log(events: Events) -> GeneratorLog:
    """Read the generator's journal."""
    done = events["done"][-1] if events["done"] else None
    lag = {} if done is None else done["schedule_lag_ms"]
    return GeneratorLog(
        death=_death_reason(events),
        end_offsets=None if done is None else offsets_by_partition(done["end_offsets"]),
        schedule_lag=ScheduleLagMs(p50=lag.get("p50"), p99=lag.get("p99"), max=lag.get("max")),
        unknown=None if done is None else int(done["unknown"]),
        latest=tuple(
            (int(line["wall_ns"]), float(line["latest_ms"])) for line in events["progress"] if "latest_ms" in line
        ),
        progress=tuple(events["progress"]),
        data=next((line["data"] for line in events["primed"] if line.get("data")), None),
    )


def read_scheduler_log(events: Events, planned: int, warmup_max_s: float | None = None) -> SchedulerLog:
    """Read the fault scheduler's journal of a run with `planned` faults.

    Injections that were not made because the engine was not steady are omitted; faults missing for other reasons are
    kept. `warmup_max_s`: longest allowed warm-up.
    """
    begin, end, abandoned = (
        events[name][-1] if events[name] else None for name in ("measured_from", "measured_until", "not_normal")
    )
    made = planned if abandoned is None else min(planned, int(abandoned["fault"]))
    early = None if abandoned is None else {name: abandoned.get(name) for name in EndedEarlyPart.model_fields}
    return SchedulerLog(
        injected=tuple(_injected_fault(events, index) for index in range(made)),
        death=_death_reason(events),
        bounds=tuple(line for line in (begin, end) if line is not None),
        begin_source=_begin_source(begin),
        end_source="conductor.jsonl: the last recovery was over, or the next injection was given up"
        if end is not None
        else f"{'T0 + warmup_s' if begin is None else 'measured_from'} + duration_s",
        injections=InjectionsPart.model_validate({"planned": planned, "made": made, "ended_early": early}),
        warmup=None
        if begin is None
        else WarmupPart(waited_s=begin.get("waited_s"), steady=begin.get("steady"), bound_s=warmup_max_s),
        clocks=tuple(events["clock"]),
        signalled=tuple(line.get("victim") for line in events["delivered"]),
    )


def _begin_source(begin: Line | None) -> str:
    """Return the evidence of the start of the measured window."""
    if begin is None:
        return "T0 + warmup_s"
    over = f"over {begin['commits']} commits" if begin.get("commits") else "over the last commits"
    steady = f"latency and lag were steady {over}" if begin.get("steady") else "not steady yet at warmup_max_s"
    return f"conductor.jsonl: {steady}"


def _death_reason(events: Events) -> str | None:
    """Return why a process did not end with the event `done`; None if it did."""
    if events["failed"]:
        return str(events["failed"][-1].get("message", "failed"))
    return None if events["done"] else "it never reported `done`"


def _injected_fault(events: Events, index: int) -> InjectedFault:
    def lines_of(name: str) -> list[Line]:
        return [line for line in events[name] if line.get("fault", 0) == index]

    delivered, settled = lines_of("delivered"), lines_of("settled")
    # Offsets that arrived after the signal may include records sent after it.
    offsets = [line for line in lines_of("end_offsets") if line.get("before_signal", True)]
    triggers = [line for line in events["injection"] if line.get("fault") == index]
    trigger = {name: triggers[-1].get(name) for name in TriggerPart.model_fields} if triggers else None
    outcome = settled[-1] if settled else {"outcome": None}
    return InjectedFault(
        index=index,
        t0_ns=min((int(line["wall_ns"]) for line in delivered), default=None),
        victims=_victims(events["victims"], index, delivered),
        end_offsets=offsets_by_partition(offsets[0]["offsets"]) if offsets else None,
        undo_lines=tuple(lines_of("undone")),
        settled=SettledFault(outcome["outcome"], str(outcome.get("detail") or "")),
        trigger=None if trigger is None else TriggerPart.model_validate(trigger),
    )


def _victims(lines: Sequence[Line], index: int, delivered: Sequence[Line]) -> tuple[Line, ...]:
    """Return the victims that received the signal, each once, with the role that the delivery names.

    A victim may be chosen again shortly before the injection, so the last line on a process counts.
    """
    roles = {line.get("victim"): line.get("role") for line in delivered}
    found: dict[tuple[str, int | None], Line] = {}
    for line in lines:
        for victim in line["victims"]:
            pid = victim.get("pid")
            if victim.get("fault", line.get("fault", 0)) == index and pid in roles:
                found[str(victim.get("host") or ""), pid] = {**victim, "role": roles[pid] or victim.get("role")}
    return tuple(found.values())
