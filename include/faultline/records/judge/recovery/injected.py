"""What the conductor's journal says of each planned fault, by the fault's number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from faultline.engines.base import offsets_by_partition
from faultline.records.judge.validity import Settled
from faultline.system.journal import Line, events, last


@dataclass(frozen=True)
class Injected:
    """One planned fault. `t0_ns`: the first delivery, None when nothing was delivered.

    `victims`: the lines of those that were hit. `end_offsets`: the broker's, read before the signal; None
    when they came too late. `undone`: the conductor's lines about the end of an act that lasts. `trigger`: its line on
    why an injection after the first came when it did.
    """

    index: int
    t0_ns: int | None
    victims: tuple[Line, ...]
    end_offsets: Mapping[str, int] | None
    undone: tuple[Line, ...]
    settled: Settled
    trigger: Line | None = None

    def name(self, event: str) -> str:
        """The event's name on the record's timeline: that of the second fault on carries its number."""
        return event if self.index == 0 else f"{event}#{self.index + 1}"


def read_injected(conductor: Sequence[Line], planned: int) -> tuple[Injected, ...]:
    """One entry for each of the `planned` faults, also for those of which the journal says nothing.

    Injections that were not made, since the engine did not get back to normal, are left out.
    """
    given_up = last(conductor, event="not_normal")
    made = planned if given_up is None else min(planned, int(given_up["fault"]))
    return tuple(_read(conductor, index) for index in range(made))


def _read(conductor: Sequence[Line], index: int) -> Injected:
    def own(name: str) -> list[Line]:
        return [line for line in events(conductor, name) if line.get("fault", 0) == index]

    delivered = own("delivered")
    settled = own("settled")
    # An answer that came after the signal holds records that were not there at the signal.
    offsets = [line for line in own("end_offsets") if line.get("before_signal", True)]
    return Injected(
        index=index,
        t0_ns=min((int(line["wall_ns"]) for line in delivered), default=None),
        victims=_victims(conductor, index, delivered),
        end_offsets=offsets_by_partition(offsets[0]["offsets"]) if offsets else None,
        undone=tuple(own("undone")),
        settled=_settled(settled[-1]) if settled else Settled(None),
        trigger=last(conductor, event="injection", fault=index),
    )


def _settled(line: Line) -> Settled:
    return Settled(str(line["outcome"]), str(line.get("detail") or ""))


def _victims(conductor: Sequence[Line], index: int, delivered: Sequence[Line]) -> tuple[Line, ...]:
    """The victims that were hit, each once; the role that the delivery names is the real one.

    A victim may be chosen again shortly before the act: what was said of a process last counts.
    """
    roles = {line.get("victim"): line.get("role") for line in delivered}
    found: dict[tuple[str, int | None], Line] = {}
    for line in events(conductor, "victims"):
        for victim in line["victims"]:
            pid = victim.get("pid")
            if victim.get("fault", line.get("fault", 0)) == index and pid in roles:
                found[str(victim.get("host") or ""), pid] = {**victim, "role": roles[pid] or victim.get("role")}
    return tuple(found.values())
