"""Fault actions: the declaration of an action, and the driver that injects and undoes it.

The modules of `fault.actions` declare actions; `fault.registry` finds them. Callers read an action's fields and never
compare its name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from fault.fault_spec import Occurrence, Parameter
from fault.identity import KAFKA, VICTIM_PHRASES, Delivery, ProcessIdentity, Tokens
from fault.injector import Injector, Settlement
from fault.victims import VictimGuard


class Moment(Protocol):
    """One moment on the wall clock and the monotonic clock, in nanoseconds."""

    @property
    def wall_ns(self) -> int: ...

    @property
    def mono_ns(self) -> int: ...


@dataclass(frozen=True)
class Daemon:
    """A process that an action needs from before the workload starts until the attempt is closed.

    `role`: its name in the ledger, the attempt's list of started processes. `module`: program, run with `arguments`.
    `ready`: file that appears once the process is ready.
    """

    role: str
    module: str
    arguments: tuple[str, ...]
    ready: Path


@dataclass(frozen=True)
class DaemonContext:
    """Addresses and folder of an attempt's daemons.

    `folder`: the attempt's folder. `kafka`: HOST:PORT of a broker listener whose advertised address is `proxy_address`.
    `proxy_address`: HOST:PORT on which a daemon listens.
    """

    folder: Path
    kafka: str
    proxy_address: str


def ignore_restart_delay(service: str, until_mono_ns: int) -> None:
    """Ignore the restart delay of a service that cannot be delayed."""


@dataclass(frozen=True)
class Context:
    """Resources of a fault driver in one attempt.

    `folder`: the attempt's folder. `now`: returns the current moment. `delay_restart(service, until_mono_ns)` keeps a
    dead service down until then: `kafka`, or a Spark worker HOST:PORT. `addresses` and `disks` are by host; "" is this
    host. A disk is a folder on a separate file system for a service's files.
    """

    folder: Path
    injector: Injector
    tokens: Tokens
    guard: VictimGuard
    now: Callable[[], Moment]
    seed: int = 0
    repetition: int = 0
    delay_restart: Callable[[str, int], None] = ignore_restart_delay
    restart_delay_s: float = 0.0
    addresses: Mapping[str, str] = field(default_factory=dict)
    disks: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class UndoSpec:
    """An undo step as JSON values, which any process can replay through its action.

    `name`: unique within one injection. `fields`: the driver's own values.
    """

    action: str
    name: str
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DeliveryRecord:
    """Delivery of a fault to one victim. `settlement`: the outcome if nothing could be delivered, else None."""

    victim: int | None
    role: str
    at: Moment
    delivery: Delivery
    identity: ProcessIdentity | None = None
    settlement: Settlement | None = None


class PartialInjection(Exception):
    """Failure of an injection at some of its victims; `deliveries` are those that succeeded."""

    def __init__(self, cause: Exception, deliveries: Sequence[DeliveryRecord]) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.deliveries = list(deliveries)


class Injection(ABC):
    """One occurrence of an action, from the choice of its victims to its outcome."""

    @abstractmethod
    def find_victims(self) -> bool:
        """Find the victims again and return whether they changed. Raises FaultError."""

    @abstractmethod
    def describe(self) -> list[str]:
        """Return the dry run, one line per victim."""

    @abstractmethod
    def victims(self) -> list[dict[str, Any]]:
        """Return the victims as JSON values for the journal."""

    @abstractmethod
    def plan_undo(self) -> list[UndoSpec]:
        """Return the undo steps to register before the injection; empty for an instantaneous fault."""

    def await_ready(self, until_mono_ns: int) -> bool:
        """Wait for the precondition of the injection; return False if it was not met in time."""
        return True

    def arm(self, planned: Moment) -> None:
        """Prepare the injection, after its undo is registered."""
        return None

    def disarm(self) -> None:
        """Revert `arm`; called with or without an injection in between; idempotent."""
        return None

    @abstractmethod
    def perform(self) -> list[DeliveryRecord]:
        """Inject the fault. Raises PartialInjection."""

    @abstractmethod
    def settle(self, deliveries: Sequence[DeliveryRecord]) -> Settlement:
        """Check whether the fault took effect, and return its outcome."""


class FaultDriver(ABC):
    """Code that injects and undoes one kind of fault; the fault scheduler controls the timing."""

    def prepare(self, site: DaemonContext) -> tuple[Daemon, ...]:
        """Return the daemons that the action needs; equal daemons of several actions start once."""
        return ()

    @abstractmethod
    def create_injection(self, planned: Occurrence, context: Context) -> Injection:
        """Create the injection of one planned occurrence."""

    @abstractmethod
    def is_active(self, undo: UndoSpec, context: Context) -> bool:
        """Return whether the fault of this undo step is still active. Raises FaultError."""

    @abstractmethod
    def undo(self, undo: UndoSpec, context: Context) -> None:
        """Run the undo step; idempotent. Raises FaultError."""


@dataclass(frozen=True)
class Action:
    """One kind of fault.

    - `order`: position in lists.
    - `targets`: victims it accepts.
    - `does`, `past`: phrases for the fault and for reports, such as *sends SIGKILL* and *killed*.
    - `when`: condition of a measurement, with `{victim}` and parameters: *after {victim} was killed*.
    - `resource`: what it affects instead of a process chosen by seed; if `targets_hosts`, only with the victim `kafka`.
    - `ends_victim`: the victim dies and is restarted.
    - `uses_proxy`: the workload must connect to Kafka through the proxy.
    - `targets_hosts`: it affects whole hosts (unless it has a `resource`), so other hosts must exist.
    - `past_on_host`, `when_on_host`: `past` and `when` for a whole host, if the action also has a `resource`.
    - `manual_undo`: instruction for the user if the undo fails.
    """

    name: str
    order: int
    targets: tuple[str, ...]
    does: str
    past: str
    when: str
    driver: FaultDriver
    parameters: tuple[Parameter, ...] = ()
    resource: str | None = None
    ends_victim: bool = False
    uses_proxy: bool = False
    targets_hosts: bool = False
    past_on_host: str = ""
    when_on_host: str = ""
    manual_undo: str = ""

    def parameter(self, name: str) -> Parameter | None:
        """Return the parameter of that name, or None."""
        return next((one for one in self.parameters if one.name == name), None)

    def resource_of(self, victim: str) -> str | None:
        """Return the affected resource for this victim, or None if processes are chosen by seed."""
        return None if self.targets_hosts and victim != KAFKA.name else self.resource

    @property
    def defaults(self) -> dict[str, Any]:
        """Parameter values for a fault given by victim, action and time alone."""
        return {one.name: one.default for one in self.parameters if one.default is not None}

    def describe(self, victim: str, values: Mapping[str, Any]) -> str:
        """Return `when` with the victim and `values` filled in; missing values come from `defaults`.

        Raises KeyError or ValueError if the text cannot be filled.
        """
        when = self.when if self.resource_of(victim) or not self.when_on_host else self.when_on_host
        return when.format(victim=VICTIM_PHRASES[victim], **{**self.defaults, **values})


class UndoStack:
    """Named undo steps, run newest first.

    A step leaves the stack only after it succeeded, so an interrupted undo can be repeated; steps must be idempotent.
    """

    def __init__(self) -> None:
        self._steps: list[tuple[str, Callable[[], None]]] = []

    def __len__(self) -> int:
        return len(self._steps)

    def register(self, name: str, step: Callable[[], None]) -> None:
        """Add a step; call this before the injection that it reverts."""
        self._steps.append((name, step))

    def run(self) -> list[tuple[str, Exception | None]]:
        """Run all steps; return each step's name, and its error or None. A failed step does not stop the others."""
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
