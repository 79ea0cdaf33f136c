"""Actions on whole hosts: on the one where a victim lives. Its handler acts, after it started a watchdog."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fault.action import Action, Context, DeliveryRecord, FaultDriver, Injection, Moment, PartialInjection, UndoSpec
from fault.errors import ConnectionLost, FaultError, VictimRefused
from fault.fault_spec import DURATION, FaultSpec, Occurrence, Parameter
from fault.host_faults import name_of
from fault.identity import KAFKA_HOST, Delivery, ProcessIdentity
from fault.injector import FaultOutcome, Settlement
from fault.victims import choose

# So much longer than the act its watchdog waits.
LATE_S = 10.0


@dataclass(frozen=True)
class HostDriver(FaultDriver):
    """Does `kind` of `fault.host_faults` to hosts. `asks` gives what it is asked for, of the fault, the host's name and
    the places that the attempt knows. `here`: it can be done to this host, too, where driver and harness live."""

    kind: str
    asks: Callable[[FaultSpec, str, Context], dict[str, Any]]
    here: bool = False

    def act(self, planned: Occurrence, context: Context) -> HostsAction:
        return HostsAction(self, planned, context)

    def holds(self, undo: UndoSpec, context: Context) -> bool:
        return bool(context.injector.act(undo.fields["host"], "holds", **undo.fields["act"]))

    def undo(self, undo: UndoSpec, context: Context) -> None:
        context.injector.act(undo.fields["host"], "undo", **undo.fields["act"])


@dataclass
class HostsAction(Injection):
    """One act on hosts."""

    hands: HostDriver
    planned: Occurrence
    context: Context
    _chosen: tuple[ProcessIdentity, ...] = ()

    def find(self) -> bool:
        """Victims by seed, on a host each; those chosen before stay while they live, and their hosts while there is
        another. Has each host look whether the act can be done there. Raises FaultError."""
        fault, context, before = self.planned.fault, self.context, self._chosen
        candidates = context.injector.find(fault.victim, context.tokens)
        first_of = {one.host: one for one in reversed(candidates)}
        if "" in first_of and not self.hands.here:
            raise VictimRefused(
                f"{self.hands.kind}: the {fault.victim} runs on this host, and this is done to other ones; "
                "./faultline up --hosts 3"
            )
        if before and all(one.host in first_of for one in before):
            alive = {_who(one): one for one in candidates}
            self._chosen = tuple(alive.get(_who(one), first_of[one.host]) for one in before)
        else:
            self._chosen = choose(
                tuple(first_of.values()), fault.count, seed=context.seed, repetition=context.repetition,
                fault=self.planned.index,
            )  # fmt: skip
        context.guard.check(fault, self._chosen)
        for one in self._chosen:
            context.injector.act(one.host, "check", **self._act(one))
        return [*map(_who, self._chosen)] != [*map(_who, before)]

    @property
    def hosts(self) -> tuple[str, ...]:
        """Those that were chosen."""
        return tuple(one.host for one in self._chosen)

    def _act(self, victim: ProcessIdentity) -> dict[str, Any]:
        return {
            "kind": self.hands.kind,
            "name": name_of(self.context.tokens.run, self.planned.index),
            "asked": self.hands.asks(self.planned.fault, victim.host, self.context),
        }

    def describe(self) -> list[str]:
        return [f"would {self.planned.what(f'{_called(one.host)} of {one}')}" for one in self._chosen]

    def victims(self) -> list[dict[str, Any]]:
        """The processes for whose sake their hosts were chosen."""
        return [{"fault": self.planned.index, **one.as_json(), "executors": None} for one in self._chosen]

    def undo(self) -> list[UndoSpec]:
        action = self.planned.fault.action
        return [
            UndoSpec(action, f"end of {action} on {_called(one.host)}", {"host": one.host, "act": self._act(one)})
            for one in self._chosen
        ]

    def arm(self, planned: Moment) -> None:
        """Starts a watchdog on each host, before anything is done there."""
        seconds = (self.planned.fault.duration_s or 0.0) + LATE_S
        for one in self._chosen:
            self.context.injector.undo_later(one.host, seconds, **self._act(one))

    def perform(self) -> list[DeliveryRecord]:
        """Tells each host, once. What it said may be lost on its way: then it is asked when all is settled. Raises
        HalfDone."""
        sent: list[DeliveryRecord] = []
        for one in self._chosen:
            delivery = Delivery.SENT
            try:
                self.context.injector.act(one.host, "do", **self._act(one))
            except ConnectionLost:
                delivery = Delivery.UNKNOWN
            except FaultError as error:
                raise PartialInjection(error, sent) from None
            sent.append(DeliveryRecord(one.pid, one.role.name, self.context.now(), delivery, one))
        return sent

    def settle(self, sent: Sequence[DeliveryRecord]) -> Settlement:
        hosts = [_called(one.host) for one in self._chosen]
        holds = self.context.injector.act
        idle = [_called(one.host) for one in self._chosen if not holds(one.host, "holds", **self._act(one))]
        if idle:
            return Settlement(FaultOutcome.NO_EFFECT, f"{self.hands.kind}: does not hold on {', '.join(idle)}")
        return Settlement(FaultOutcome.EFFECTIVE, f"{self.hands.kind}: holds on {', '.join(hosts)}")


def _called(host: str) -> str:
    return f"the host {host}" if host else "this host"


def _who(victim: ProcessIdentity) -> tuple[str, int, int | None]:
    # A step of the clock makes no other process of it.
    return victim.host, victim.pid, victim.start_ticks


def others(peer: str, host: str, context: Context) -> list[str]:
    """The addresses of those from whom `host` is cut off, by a word of `fault.fault_spec.PEERS`.

    Raises VictimRefused where there is none.
    """
    fits: dict[str, Callable[[str], bool]] = {
        "kafka": lambda name: name == KAFKA_HOST,
        "driver": lambda name: not name,
        "workers": lambda name: name not in ("", KAFKA_HOST),
    }
    found = [
        address
        for name, address in context.addresses.items()
        if name != host and (peer not in fits or fits[peer](name))
    ]
    if not found:
        raise VictimRefused(f"peer: {peer} has no host beside {host}; use another one")
    return found


def _asks_of_partition(fault: FaultSpec, host: str, context: Context) -> dict[str, Any]:
    return {"peers": others(fault.peer or "all", host, context), "way": fault.way or "both"}


PARTITION = Action(
    name="partition",
    order=70,
    targets=("executor", "worker", "kafka"),
    does="drops all traffic between the victim's host and its peers",
    past="cut off the host of",
    when="with the host of {victim} cut off for {duration_s:g} s",
    parameters=(Parameter(DURATION, short=10.0), Parameter("peer", required=False), Parameter("way", required=False)),
    on_hosts=True,
    by_hand="delete the table faultline_… there with nft",
    hands=HostDriver("partition", _asks_of_partition),
)


def _asks_of_bandwidth(fault: FaultSpec, host: str, context: Context) -> dict[str, Any]:
    return {"peers": others("all", host, context), "mbit_s": fault.mbit_s}


BANDWIDTH = Action(
    name="bandwidth",
    order=80,
    targets=("executor", "worker", "kafka"),
    does="limits the outgoing rate of the victim's host to `mbit_s`",
    past="narrowed the network of the host of",
    when="with the host of {victim} narrowed to {mbit_s:g} Mbit/s for {duration_s:g} s",
    parameters=(Parameter(DURATION, short=10.0), Parameter("mbit_s", short=10.0)),
    on_hosts=True,
    by_hand="remove the queueing discipline tbf at the root there with tc",
    hands=HostDriver("bandwidth", _asks_of_bandwidth),
)


def _asks_of_disk_full(fault: FaultSpec, host: str, context: Context) -> dict[str, Any]:
    if not host and (fault.victim != "driver" or host not in context.disks):
        raise VictimRefused(
            f"disk_full: what the {fault.victim} writes lies on the disk of this machine, which is not filled; "
            "./faultline up --hosts 3 gives checkpoints one of their own"
        )
    if host not in context.disks:
        raise VictimRefused(f'disk_full: ssh_hosts.json names no disk of {host} that may be filled; add "disk": FOLDER')
    return {"folder": context.disks[host]}


DISK_FULL = Action(
    name="disk_full",
    order=90,
    targets=("executor", "worker", "kafka", "driver"),
    does="fills the disk of the victim's host; for `driver`, the checkpoint disk",
    past="filled the disk of",
    when="with the disk of {victim} full for {duration_s:g} s",
    parameters=(Parameter(DURATION, short=10.0),),
    on_hosts=True,
    by_hand="delete the file faultline-ballast-… there",
    hands=HostDriver("disk_full", _asks_of_disk_full, here=True),
)


def _asks_of_cpu_pressure(fault: FaultSpec, host: str, context: Context) -> dict[str, Any]:
    return {"cores": int(fault.cores or 1)}


CPU_PRESSURE = Action(
    name="cpu_pressure",
    order=100,
    targets=("executor", "worker", "kafka"),
    does="runs busy processes on `cores` cores of the victim's host",
    past="took cores from the host of",
    when="with neighbours on {cores:g} cores of the host of {victim} for {duration_s:g} s",
    parameters=(Parameter(DURATION, short=10.0), Parameter("cores", short=2.0)),
    on_hosts=True,
    by_hand="end the processes faultline-neighbour=… there",
    hands=HostDriver("cpu_pressure", _asks_of_cpu_pressure),
)


def _asks_of_memory_pressure(fault: FaultSpec, host: str, context: Context) -> dict[str, Any]:
    return {"memory_mb": int(fault.memory_mb or 1)}


MEMORY_PRESSURE = Action(
    name="memory_pressure",
    order=110,
    targets=("executor", "worker", "kafka"),
    does="allocates `memory_mb` MiB on the victim's host",
    past="took memory from the host of",
    when="with a neighbour of {memory_mb:g} MiB on the host of {victim} for {duration_s:g} s",
    parameters=(Parameter(DURATION, short=10.0), Parameter("memory_mb", short=1024.0)),
    on_hosts=True,
    by_hand="end the process faultline-neighbour=… there",
    hands=HostDriver("memory_pressure", _asks_of_memory_pressure),
)
