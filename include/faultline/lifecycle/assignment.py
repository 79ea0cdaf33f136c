"""What a conductor is to do, read from the attempt's own file and its plan."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fault.action import Context
from fault.errors import FaultError
from fault.identity import Tokens
from fault.injector import Injector
from fault.plan import PlannedFault
from fault.victims import Guard
from faultline.experiment.attempt import Attempt
from faultline.experiment.common import MAX_WAIT_S, RECOVERED_WITHIN
from faultline.experiment.plan import Aim, plan_of
from faultline.installation.start import lay_hold
from faultline.system.errors import ConfigError, InfrastructureError
from faultline.system.journal import Instant
from faultline.system.ssh_hosts import remote_hosts

if TYPE_CHECKING:  # the SSH library takes a quarter of a second, which a run on this machine alone does without
    from fault.connection import RemoteHost


@dataclass(frozen=True)
class Assignment:
    """What the conductor takes from both. `aim`, `warmup_max_s`, `max_wait_s`, `within`: see the plan.

    `generator`: its specification, which holds the send schedule; None where the engine makes the events itself.
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
    aim: Aim | None = None
    here: str = ""
    disks: Mapping[str, str] = field(default_factory=dict)
    warmup_max_s: float | None = None
    max_wait_s: float = MAX_WAIT_S
    within: float = RECOVERED_WITHIN
    generator: Mapping[str, Any] | None = None

    @property
    def several(self) -> bool:
        """Whether the fault of the short form is injected several times."""
        return self.aim is not None and len(self.planned) > 1

    @property
    def tokens(self) -> Tokens:
        """What the command lines of victims carry."""
        return Tokens(self.attempt, self.services)

    def context(self, folder: Path, injector: Injector) -> Context:
        """What the hands of actions work with. `folder`: the attempt's own."""
        return Context(
            folder,
            injector,
            self.tokens,
            Guard(self.tokens),
            Instant.now,
            seed=self.seed,
            repetition=self.repetition,
            hold=self._hold,
            restart_delay_s=self.restart_delay_s,
            addresses={"": self.here, **{name: host.host for name, host in self.hosts.items()}},
            disks=self.disks,
        )

    def _hold(self, service: str, until_mono_ns: int) -> None:
        if service in self.holds:
            lay_hold(self.holds[service], until_mono_ns)


def read_assignment(directory: Path) -> Assignment:
    """Reads DIR/attempt.json. Raises ConfigError with one line that names the key."""
    try:
        data = json.loads((directory / "attempt.json").read_text(encoding="utf-8"))
        plan, services = plan_of(Attempt(directory)), data.get("services") or {}
        return Assignment(
            attempt=str(data["attempt"]),
            planned=plan.faults,
            duration_s=plan.duration_s,
            bootstrap=str(data["kafka"]["bootstrap"]),
            input_topic=str(data["topics"]["input"]),
            seed=plan.seed,
            repetition=int(data["repetition"]),
            checkpoint_interval_s=plan.checkpoint_interval_s,
            snapshot_interval_s=plan.snapshot_interval_s,
            restart_delay_s=plan.restart_delay_s,
            services=services.get("instance"),
            holds={name: Path(path) for name, path in services.get("holds", {}).items()},
            hosts=remote_hosts(data.get("hosts") or {}),
            window_lock=Path(data["window_lock"]) if data.get("window_lock") else None,
            warmup_s=plan.warmup_s,
            aim=plan.aim,
            here=plan.endpoints.here,
            disks=_disks(data),
            warmup_max_s=plan.warmup_max_s,
            max_wait_s=plan.max_wait_s,
            within=plan.within,
            generator=plan.generator,
        )
    except KeyError as error:
        raise ConfigError(f"{error.args[0]}: missing in attempt.json; clear the whole run") from None
    except (FaultError, InfrastructureError) as error:
        raise ConfigError(str(error)) from None
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"attempt.json: cannot be used: {' '.join(str(error).split())}") from None


def injector_of(assignment: Assignment) -> Injector:
    """Reaches this machine and each one that is reached over SSH; to none it connects before it is asked."""
    if not assignment.hosts:
        return Injector()
    from fault.connection import SshChannel

    return Injector({name: SshChannel(host) for name, host in assignment.hosts.items()})


def _disks(data: Mapping[str, Any]) -> dict[str, str]:
    """Of each host what may be filled; of this one, "", the disk of checkpoints."""
    found = {name: host.get("disk") for name, host in (data.get("hosts") or {}).items()}
    return {name: str(disk) for name, disk in {**found, "": data.get("checkpoint_disk")}.items() if disk}
