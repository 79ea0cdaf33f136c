"""The guard rails: what every set of victims must pass before any of them is touched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fault.errors import VictimRefused
from fault.identity import ProcessIdentity, require_token
from fault.plan import Fault
from fault.victims import own_line


@dataclass(frozen=True)
class Guard:
    """Lets through only processes of the run `token`, and never more than the fault asks for.

    `protected`: pids that are refused whoever names them; by default this process and its ancestors.
    """

    token: str
    protected: frozenset[int] = field(default_factory=own_line)

    def __post_init__(self) -> None:
        require_token(self.token)

    def check(self, fault: Fault, victims: Sequence[ProcessIdentity]) -> None:
        """Raises VictimRefused, naming the rail, unless all `victims` may suffer `fault`."""
        if len(victims) > fault.count:
            raise VictimRefused(f"count: {len(victims)} victims, but the fault allows {fault.count}")
        if len({victim.pid for victim in victims}) != len(victims):
            raise VictimRefused("pid: the same process is named twice")
        for victim in victims:
            if victim.pid <= 1 or victim.pid in self.protected:
                raise VictimRefused(f"pid: process {victim.pid} is this process, an ancestor of it, or init")
            if victim.token != self.token:
                raise VictimRefused(f"token: process {victim.pid} belongs to {victim.token}, this run is {self.token}")
            if victim.role.name != fault.victim:
                raise VictimRefused(f"role: process {victim.pid} is a {victim.role.name}, not a {fault.victim}")

    def describe(self, fault: Fault, victims: Sequence[ProcessIdentity]) -> list[str]:
        """The dry run: one line for each victim, saying what would happen to it and when."""
        self.check(fault, victims)
        length = "" if fault.duration_s is None else f" for {fault.duration_s:g} s"
        return [f"would {fault.action} {victim}{length} at T0 + {fault.at_s:g} s" for victim in victims]
