"""Input of the fault scheduler, read from the attempt's description and plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fault.action import Context
from fault.errors import FaultError
from fault.identity import Tokens
from fault.injector import Injector
from fault.plan import PlannedFault
from fault.victims import VictimGuard
from faultline.experiment.attempt import Attempt
from faultline.experiment.attempt_plan import AttemptPlan, FaultPhase, read_plan
from faultline.experiment.common_parameters import MAX_WAIT_S, RECOVERED_WITHIN
from faultline.installation.start import write_delay
from faultline.system.errors import ConfigError, InfrastructureError
from faultline.system.journal import Instant
from faultline.system.ssh_hosts import remote_hosts

if TYPE_CHECKING:  # importing the SSH library takes 0.25 s
    from fault.ssh_connection import RemoteHost


@dataclass(frozen=True)
class SchedulerInput:
    """Input of the fault scheduler.

    `target_phase` (`aim` in the plan): phase of the checkpoint cycle at which to inject; None if faults have fixed
    times. `warmup_max_s`, `max_wait_s`, `recovered_within`: as in the plan. `generator`: specification of the generator
    with its send schedule; None if the engine generates the events.
    """

    attempt: str
    planned: tuple[PlannedFault, ...]
    duration_s: float
    bootstrap: str
    input_topic: str
    seed: int = 0
    repetition: int = 0
    checkpoint_interval_s: float = 1.0
    snapshot_interval_s: float = 0.0
    restart_delay_s: float = 0.0
    services: str | None = None
    holds: Mapping[str, Path] = field(default_factory=dict)
    hosts: Mapping[str, RemoteHost] = field(default_factory=dict)
    window_lock: Path | None = None
    warmup_s: float = 0.0
    target_phase: FaultPhase | None = None
    local_address: str = ""
    disks: Mapping[str, str] = field(default_factory=dict)
    warmup_max_s: float | None = None
    max_wait_s: float = MAX_WAIT_S
    recovered_within: float = RECOVERED_WITHIN
    generator: Mapping[str, Any] | None = None

    @property
    def has_several_faults(self) -> bool:
        """Whether a fault without a time of its own is injected several times."""
        return self.target_phase is not None and len(self.planned) > 1

    @property
    def tokens(self) -> Tokens:
        """Tokens on the command lines of victims."""
        return Tokens(self.attempt, self.services)

    def context(self, folder: Path, injector: Injector) -> Context:
        """Return the context of the fault drivers.

        `folder`: the attempt's.
        """
        return Context(
            folder,
            injector,
            self.tokens,
            VictimGuard(self.tokens),
            Instant.now,
            seed=self.seed,
            repetition=self.repetition,
            delay_restart=self._delay_restart,
            restart_delay_s=self.restart_delay_s,
            addresses={"": self.local_address, **{name: host.host for name, host in self.hosts.items()}},
            disks=self.disks,
        )

    def _delay_restart(self, service: str, until_mono_ns: int) -> None:
        if service in self.holds:
            write_delay(self.holds[service], until_mono_ns)


def read_scheduler_input(directory: Path) -> SchedulerInput:
    """Read the input from DIR/plan.json.

    Raises ConfigError with one line naming the error.
    """
    try:
        return scheduler_input_of(Attempt(directory), read_plan(Attempt(directory)))
    except (FaultError, InfrastructureError) as error:
        raise ConfigError(str(error)) from None


def scheduler_input_of(attempt: Attempt, plan: AttemptPlan) -> SchedulerInput:
    """Return the fault scheduler's input from a plan."""
    places, hosts = plan.places, plan.endpoints.hosts
    # Disk that may be filled on each host; on this host (""), that of the checkpoints.
    disks = {name: host.get("disk") for name, host in hosts.items()} | {"": places.checkpoint_disk}
    return SchedulerInput(
        attempt=str(attempt.read()["attempt"]),
        planned=plan.faults,
        duration_s=plan.duration_s,
        bootstrap=plan.endpoints.kafka,
        input_topic=plan.topics["input"].name,
        seed=plan.seed,
        repetition=plan.order.repetition,
        checkpoint_interval_s=plan.checkpoint_interval_s,
        snapshot_interval_s=plan.snapshot_interval_s,
        restart_delay_s=plan.restart_delay_s,
        services=places.instance,
        holds={name: Path(path) for name, path in places.holds.items()},
        hosts=remote_hosts(hosts),
        window_lock=None if places.window_lock is None else Path(places.window_lock),
        warmup_s=plan.warmup_s,
        target_phase=plan.aim,
        local_address=plan.endpoints.here,
        disks={name: str(disk) for name, disk in disks.items() if disk},
        warmup_max_s=plan.warmup_max_s,
        max_wait_s=plan.max_wait_s,
        recovered_within=plan.recovered_within,
        generator=plan.generator,
    )


def injector_of(scheduler_input: SchedulerInput) -> Injector:
    """Return an injector for this machine and the SSH hosts, which connects on first use."""
    if not scheduler_input.hosts:
        return Injector()
    from fault.ssh_connection import SshChannel

    return Injector({name: SshChannel(host) for name, host in scheduler_input.hosts.items()})
