"""What guard and actions see of a planned fault; `fault.plan` knows the actions, so they cannot know it."""

from __future__ import annotations

from typing import Protocol


class Asked(Protocol):
    """What a plan asks for; `fault.plan.Fault` is one."""

    @property
    def victim(self) -> str:
        """A victim word."""
        ...

    @property
    def action(self) -> str:
        """The name of the action."""
        ...

    @property
    def count(self) -> int:
        """Victims at once."""
        ...

    @property
    def most_processes(self) -> int:
        """How many processes may be touched; 0 for an action that hits something else."""
        ...

    @property
    def duration_s(self) -> float | None:
        """Seconds until the undo; None for an act that has none."""
        ...

    @property
    def delay_ms(self) -> float | None:
        """Milliseconds, of an act that delays."""
        ...

    @property
    def jitter_ms(self) -> float | None:
        """By how many milliseconds a delay varies."""
        ...

    @property
    def loss_percent(self) -> float | None:
        """Percent of the packets, of an act that loses some."""
        ...

    @property
    def peer(self) -> str | None:
        """From whom a host is cut off."""
        ...

    @property
    def way(self) -> str | None:
        """In which direction."""
        ...

    @property
    def mbit_s(self) -> float | None:
        """Megabits a second, of an act that narrows."""
        ...

    @property
    def cores(self) -> float | None:
        """Cores, of an act that takes some."""
        ...

    @property
    def memory_mb(self) -> float | None:
        """MiB, of an act that takes memory."""
        ...

    @property
    def waits(self) -> bool:
        """Whether the victims are chosen at the instant of the act, among those at work."""
        ...


class Occurrence(Protocol):
    """One act of a plan; `fault.plan.PlannedFault` is one."""

    @property
    def index(self) -> int:
        """Its number within the plan, from 0."""
        ...

    @property
    def fault(self) -> Asked:
        """What is asked for."""
        ...

    def what(self, whom: str | None = None) -> str:
        """The act in words, done to `whom`; by default to what its action hits."""
        ...
