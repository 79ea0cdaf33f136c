"""What a fault action is: a value that says what it can do, and the hands that do it.

The files of `fault/actions` declare them; `fault.registry` finds them. Whoever has to know
something of an action asks its value, and never for its name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from fault.fault_spec import Occurrence, Parameter
from fault.identity import KAFKA, VICTIM_WORDS, Delivery, ProcessIdentity, Tokens
from fault.injector import Injector, Settlement
from fault.victims import VictimGuard


class Moment(Protocol):
    """One moment on the wall and the monotonic clock, in nanoseconds."""

    @property
    def wall_ns(self) -> int: ...

    @property
    def mono_ns(self) -> int: ...


@dataclass(frozen=True)
class Daemon:
    """A process that an action needs beside the workload, from before it starts until the attempt is closed.

    `role`: its name in the ledger. `module`: the program, run with `arguments`. `ready` appears once it is there.
    """

    role: str
    module: str
    arguments: tuple[str, ...]
    ready: Path


@dataclass(frozen=True)
class DaemonContext:
    """Where an attempt's daemons stand. `folder`: the attempt's own.

    `kafka` and `detour` are HOST:PORT: a listener of the broker whose clients are told to come back by way of `detour`,
    and that address, which is free for a daemon.
    """

    folder: Path
    kafka: str
    detour: str


def no_hold(service: str, until_mono_ns: int) -> None:
    """For whom no restart can be held up."""


@dataclass(frozen=True)
class Context:
    """What hands work with in one attempt. `folder`: the attempt's own; `now`: this moment on the caller's clock.

    `hold(service, until_mono_ns)` keeps a service that dies down until then: `kafka`, or the Spark worker HOST:PORT.
    """

    folder: Path
    injector: Injector
    tokens: Tokens
    guard: VictimGuard
    now: Callable[[], Moment]
    seed: int = 0
    repetition: int = 0
    hold: Callable[[str, int], None] = no_hold
    restart_delay_s: float = 0.0
    # Of each host, "" being this one; and where what a host's service writes lies on a disk of its own.
    addresses: Mapping[str, str] = field(default_factory=dict)
    disks: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class UndoSpec:
    """A step that heals, as JSON values: any process can replay it through the action of that name.

    `name` tells the steps of one act apart. `fields`: what the hands need for it.
    """

    action: str
    name: str
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DeliveryRecord:
    """One delivery: to whom, when, and what is known of it. A `settlement` means that nothing was delivered."""

    victim: int | None
    role: str
    at: Moment
    delivery: Delivery
    identity: ProcessIdentity | None = None
    settlement: Settlement | None = None


class PartialInjection(Exception):
    """An act failed at one of its victims; `sent` are the deliveries that were made all the same."""

    def __init__(self, cause: Exception, sent: Sequence[DeliveryRecord]) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.sent = list(sent)


class Injection(ABC):
    """One occurrence of an action, from the choice of its victims to the word on its effect."""

    @abstractmethod
    def find(self) -> bool:
        """Looks at the victims, again after the first time; whether they are others now. Raises FaultError."""

    @abstractmethod
    def describe(self) -> list[str]:
        """The dry run: a line for each victim."""

    @abstractmethod
    def victims(self) -> list[dict[str, Any]]:
        """The victims as the journal names them."""

    @abstractmethod
    def undo(self) -> list[UndoSpec]:
        """What is to be registered before the act; none for an act that is over at once."""

    def await_ready(self, until_mono_ns: int) -> bool:
        """Waits for what must be the case at the instant of the act; False when it was not in time."""
        return True

    def arm(self, planned: Moment) -> None:
        """The last preparations, after the undo is registered."""
        return None

    def disarm(self) -> None:
        """Takes back what `arm` did for an act that was not done; harmless when repeated, and after the act."""
        return None

    @abstractmethod
    def perform(self) -> list[DeliveryRecord]:
        """The act itself. Raises HalfDone."""

    @abstractmethod
    def settle(self, sent: Sequence[DeliveryRecord]) -> Settlement:
        """What it did."""


class FaultDriver(ABC):
    """What an action does, apart from when: the conductor keeps the time."""

    def prepare(self, site: DaemonContext) -> tuple[Daemon, ...]:
        """The processes that must run for it; equal ones of several actions are started once."""
        return ()

    @abstractmethod
    def act(self, planned: Occurrence, context: Context) -> Injection:
        """One occurrence of it."""

    @abstractmethod
    def holds(self, undo: UndoSpec, context: Context) -> bool:
        """Whether what the step undoes holds still, for a healer that comes later. Raises FaultError."""

    @abstractmethod
    def undo(self, undo: UndoSpec, context: Context) -> None:
        """Runs the step; harmless when repeated. Raises FaultError."""


@dataclass(frozen=True)
class Action:
    """One way to break something.

    `order` is its place in lists. `targets`: the victim words that it can be done to. `does` and `past` are words:
    `kill` *sends SIGKILL*, it *killed* pid 12. `when` says under what a figure was measured, with `{victim}` and the
    parameters to be filled in: *after {victim} was killed*. `hits`: what it hits in words, where that is no process
    chosen by seed; of an action on hosts for the victim `kafka` alone. `ends`: its victim is gone afterwards, and
    restarted. `detours`: the workload must come to Kafka by the detour. `by_hand`: what to do when its undo fails.
    """

    name: str
    order: int
    targets: tuple[str, ...]
    does: str
    past: str
    when: str
    hands: FaultDriver
    parameters: tuple[Parameter, ...] = ()
    hits: str | None = None
    ends: bool = False
    detours: bool = False
    # Done to whole hosts, so there must be others than this one; but to what it `hits`.
    on_hosts: bool = False
    # `past` and `when` of such a host, where those are of what it `hits`.
    past_of_host: str = ""
    when_of_host: str = ""
    by_hand: str = ""

    def takes(self, name: str) -> Parameter | None:
        """The parameter of that name; None when the action has none."""
        return next((one for one in self.parameters if one.name == name), None)

    def hits_of(self, victim: str) -> str | None:
        """What it hits in words, done to that victim, where that is no process chosen by seed."""
        return None if self.on_hosts and victim != KAFKA.name else self.hits

    @property
    def short_form(self) -> dict[str, Any]:
        """The parameters' values where a fault is given by victim, action and instant alone."""
        return {one.name: one.short for one in self.parameters if one.short is not None}

    def told(self, victim: str, values: Mapping[str, Any]) -> str:
        """`when` in words, of a victim word; parameters that `values` lack are those of the short form.

        Raises KeyError or ValueError for what cannot be told.
        """
        when = self.when if self.hits_of(victim) or not self.when_of_host else self.when_of_host
        return when.format(victim=VICTIM_WORDS[victim], **{**self.short_form, **values})


class UndoStack:
    """Named steps that heal what was broken, run newest first.

    A step leaves the stack only when it ran to its end, so that an interrupted healing can be
    begun again; each step must therefore be harmless when repeated.
    """

    def __init__(self) -> None:
        self._steps: list[tuple[str, Callable[[], None]]] = []

    def __len__(self) -> int:
        return len(self._steps)

    def register(self, name: str, step: Callable[[], None]) -> None:
        """Adds a step; to be called before the act that it undoes."""
        self._steps.append((name, step))

    def run(self) -> list[tuple[str, Exception | None]]:
        """Runs every step and gives each one's name and error; a failing step stops no other, and stays."""
        done: list[tuple[str, Exception | None]] = []
        for entry in reversed(list(self._steps)):
            name, step = entry
            problem: Exception | None = None
            try:
                step()
            except Exception as error:
                problem = error
            else:
                self._steps.remove(entry)
            done.append((name, problem))
        return done
