"""Actions on whole hosts, those of the victims. The handler on each host starts a watchdog there, then injects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fault.action import Action, Context, DeliveryRecord, FaultDriver, Injection, Moment, PartialInjection, UndoSpec
from fault.errors import ConnectionLost, FaultError, VictimRefused
from fault.fault_spec import DURATION, FaultSpec, Occurrence, Parameter
from fault.host_faults import injection_name
from fault.identity import KAFKA_HOST, Delivery, ProcessIdentity
from fault.injector import FaultOutcome, Settlement
from fault.victims import choose_victims

# Seconds from the planned undo until the watchdog undoes the fault.
WATCHDOG_MARGIN_S = 10.0


@dataclass(frozen=True)
class HostDriver(FaultDriver):
    """Driver for `kind` of `fault.host_faults`.

    `parameters` returns the parameters from the fault, the host's name and the context. `allows_local`: the fault is
    also allowed on this host, where Faultline and the workload's driver run.
    """

    kind: str
    parameters: Callable[[FaultSpec, str, Context], dict[str, Any]]
    allows_local: bool = False

    def create_injection(self, planned: Occurrence, context: Context) -> HostInjection:
        return HostInjection(self, planned, context)

    def is_active(self, undo: UndoSpec, context: Context) -> bool:
        return bool(context.injector.run_host_step(undo.fields["host"], "is_active", **undo.fields["act"]))

    def undo(self, undo: UndoSpec, context: Context) -> None:
        context.injector.run_host_step(undo.fields["host"], "undo", **undo.fields["act"])


@dataclass
class HostInjection(Injection):
    """One injection on hosts."""

    driver: HostDriver
    planned: Occurrence
    context: Context
    _chosen: tuple[ProcessIdentity, ...] = ()

    def find_victims(self) -> bool:
        """Choose victims by seed, one per host, and check on each host that the fault is possible.

        Chosen victims are kept while they live, and chosen hosts while any candidate lives there. Raises FaultError.
        """
        fault, context, before = self.planned.fault, self.context, self._chosen
        candidates = context.injector.find(fault.victim, context.tokens)
        first_on = {one.host: one for one in reversed(candidates)}
        if "" in first_on and not self.driver.allows_local:
            raise VictimRefused(
                f"{self.driver.kind}: got {fault.victim} on this host; expected another host; "
                "fix: `./faultline up --hosts 3`"
            )
        if before and all(one.host in first_on for one in before):
            alive = {_key(one): one for one in candidates}
            self._chosen = tuple(alive.get(_key(one), first_on[one.host]) for one in before)
        else:
            self._chosen = choose_victims(
                tuple(first_on.values()), fault.count, seed=context.seed, repetition=context.repetition,
                fault=self.planned.index,
            )  # fmt: skip
        context.guard.check(fault, self._chosen)
        for one in self._chosen:
            context.injector.run_host_step(one.host, "check", **self._request(one))
        return [*map(_key, self._chosen)] != [*map(_key, before)]

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names of the chosen hosts."""
        return tuple(one.host for one in self._chosen)

    def _request(self, victim: ProcessIdentity) -> dict[str, Any]:
        return {
            "kind": self.driver.kind,
            "name": injection_name(self.context.tokens.run, self.planned.index),
            "asked": self.driver.parameters(self.planned.fault, victim.host, self.context),
        }

    def describe(self) -> list[str]:
        return [f"would {self.planned.describe(f'{_host_phrase(one.host)} of {one}')}" for one in self._chosen]

    def victims(self) -> list[dict[str, Any]]:
        """Return the processes that determined the hosts."""
        return [{"fault": self.planned.index, **one.as_json(), "executors": None} for one in self._chosen]

    def plan_undo(self) -> list[UndoSpec]:
        action = self.planned.fault.action
        return [
            UndoSpec(
                action, f"end of {action} on {_host_phrase(one.host)}", {"host": one.host, "act": self._request(one)}
            )
            for one in self._chosen
        ]

    def arm(self, planned: Moment) -> None:
        """Start a watchdog on each host before the injection."""
        seconds = (self.planned.fault.duration_s or 0.0) + WATCHDOG_MARGIN_S
        for one in self._chosen:
            self.context.injector.start_host_watchdog(one.host, seconds, **self._request(one))

    def perform(self) -> list[DeliveryRecord]:
        """Inject on each host, once.

        A reply that is lost with the connection counts as unknown until `settle`. Raises PartialInjection.
        """
        deliveries: list[DeliveryRecord] = []
        for one in self._chosen:
            delivery = Delivery.SENT
            try:
                self.context.injector.run_host_step(one.host, "do", **self._request(one))
            except ConnectionLost:
                delivery = Delivery.UNKNOWN
            except FaultError as error:
                raise PartialInjection(error, deliveries) from None
            deliveries.append(DeliveryRecord(one.pid, one.role.name, self.context.now(), delivery, one))
        return deliveries

    def settle(self, deliveries: Sequence[DeliveryRecord]) -> Settlement:
        hosts = [_host_phrase(one.host) for one in self._chosen]
        run_step = self.context.injector.run_host_step
        idle = [
            _host_phrase(one.host) for one in self._chosen if not run_step(one.host, "is_active", **self._request(one))
        ]
        if idle:
            return Settlement(FaultOutcome.NO_EFFECT, f"{self.driver.kind}: not active on {', '.join(idle)}")
        return Settlement(FaultOutcome.EFFECTIVE, f"{self.driver.kind}: active on {', '.join(hosts)}")


def _host_phrase(host: str) -> str:
    return f"the host {host}" if host else "this host"


def _key(victim: ProcessIdentity) -> tuple[str, int, int | None]:
    # Start ticks, since the creation time moves with steps of the wall clock.
    return victim.host, victim.pid, victim.start_ticks


def peer_addresses(peer: str, host: str, context: Context) -> list[str]:
    """Return the addresses of the other side of a partition of `host`.

    `peer`: one of `fault.fault_spec.PEERS`. Raises VictimRefused if there is no such address.
    """
    is_peer: dict[str, Callable[[str], bool]] = {
        "kafka": lambda name: name == KAFKA_HOST,
        "driver": lambda name: not name,
        "workers": lambda name: name not in ("", KAFKA_HOST),
    }
    found = [
        address
        for name, address in context.addresses.items()
        if name != host and (peer not in is_peer or is_peer[peer](name))
    ]
    if not found:
        raise VictimRefused(f"peer: got {peer}; expected a peer on another host than {host or 'this one'}")
    return found


def _partition_parameters(fault: FaultSpec, host: str, context: Context) -> dict[str, Any]:
    return {"peers": peer_addresses(fault.peer or "all", host, context), "way": fault.way or "both"}


PARTITION = Action(
    name="partition",
    order=70,
    targets=("executor", "worker", "kafka"),
    does="drops all traffic between the victim's host and its peers",
    past="cut off the host of",
    when="with the host of {victim} cut off for {duration_s:g} s",
    parameters=(Parameter(DURATION, default=10.0), Parameter("peer", required=False), Parameter("way", required=False)),
    targets_hosts=True,
    manual_undo="delete the table faultline_… on the host with nft",
    driver=HostDriver("partition", _partition_parameters),
)


def _bandwidth_parameters(fault: FaultSpec, host: str, context: Context) -> dict[str, Any]:
    return {"peers": peer_addresses("all", host, context), "mbit_s": fault.mbit_s}


BANDWIDTH = Action(
    name="bandwidth",
    order=80,
    targets=("executor", "worker", "kafka"),
    does="limits the outgoing rate of the victim's host to `mbit_s`",
    past="limited the network rate of the host of",
    when="with the network of the host of {victim} limited to {mbit_s:g} Mbit/s for {duration_s:g} s",
    parameters=(Parameter(DURATION, default=10.0), Parameter("mbit_s", default=10.0)),
    targets_hosts=True,
    manual_undo="remove the root queueing discipline tbf on the host with tc",
    driver=HostDriver("bandwidth", _bandwidth_parameters),
)


def _disk_full_parameters(fault: FaultSpec, host: str, context: Context) -> dict[str, Any]:
    if not host and (fault.victim != "driver" or host not in context.disks):
        raise VictimRefused(
            f"disk_full: got {fault.victim}, whose files are on this machine's disk; expected a separate disk; "
            "fix: `./faultline up --hosts 3`, which puts checkpoints on one"
        )
    if host not in context.disks:
        raise VictimRefused(f'disk_full: missing disk of {host} in ssh_hosts.json; fix: add "disk": FOLDER')
    return {"folder": context.disks[host]}


DISK_FULL = Action(
    name="disk_full",
    order=90,
    targets=("executor", "worker", "kafka", "driver"),
    does="fills the disk of the victim's host; for `driver`, the checkpoint disk",
    past="filled the disk of",
    when="with the disk of {victim} full for {duration_s:g} s",
    parameters=(Parameter(DURATION, default=10.0),),
    targets_hosts=True,
    manual_undo="delete the file faultline-ballast-… on the host",
    driver=HostDriver("disk_full", _disk_full_parameters, allows_local=True),
)


def _cpu_pressure_parameters(fault: FaultSpec, host: str, context: Context) -> dict[str, Any]:
    return {"cores": int(fault.cores or 1)}


CPU_PRESSURE = Action(
    name="cpu_pressure",
    order=100,
    targets=("executor", "worker", "kafka"),
    does="runs busy processes on `cores` cores of the victim's host",
    past="put CPU load on the host of",
    when="with {cores:g} busy cores on the host of {victim} for {duration_s:g} s",
    parameters=(Parameter(DURATION, default=10.0), Parameter("cores", default=2.0)),
    targets_hosts=True,
    manual_undo="kill the processes faultline-neighbour=… on the host",
    driver=HostDriver("cpu_pressure", _cpu_pressure_parameters),
)


def _memory_pressure_parameters(fault: FaultSpec, host: str, context: Context) -> dict[str, Any]:
    return {"memory_mb": int(fault.memory_mb or 1)}


MEMORY_PRESSURE = Action(
    name="memory_pressure",
    order=110,
    targets=("executor", "worker", "kafka"),
    does="allocates `memory_mb` MiB on the victim's host",
    past="allocated memory on the host of",
    when="with {memory_mb:g} MiB allocated on the host of {victim} for {duration_s:g} s",
    parameters=(Parameter(DURATION, default=10.0), Parameter("memory_mb", default=1024.0)),
    targets_hosts=True,
    manual_undo="kill the process faultline-neighbour=… on the host",
    driver=HostDriver("memory_pressure", _memory_pressure_parameters),
)
