"""The guard rails: what every set of victims must pass before any of them is touched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fault.errors import VictimRefused
from fault.identity import ProcessIdentity, Tokens, carries_token
from fault.occurrence import Asked, Occurrence
from fault.victims import ROLES_OF, own_line


@dataclass(frozen=True)
class Guard:
    """Lets through only processes that `tokens` mark, and never more than the fault asks for.

    `protected`: local pids that are refused whoever names them; by default this process and its ancestors.
    """

    tokens: Tokens
    protected: frozenset[int] = field(default_factory=own_line)

    def check(self, fault: Asked, victims: Sequence[ProcessIdentity]) -> None:
        """Raises VictimRefused, naming the rail, unless all `victims` may suffer `fault`."""
        allowed = fault.most_processes
        if len(victims) > allowed:
            raise VictimRefused(f"count: {len(victims)} victims, but the fault allows {allowed}")
        if len({(victim.host, victim.pid) for victim in victims}) != len(victims):
            raise VictimRefused("pid: the same process is named twice")
        for victim in victims:
            self._check_one(fault, victim)

    def _check_one(self, fault: Asked, victim: ProcessIdentity) -> None:
        role = victim.role
        # The pids of another host say nothing about this process and its ancestors.
        if victim.pid <= 1 or (not victim.host and victim.pid in self.protected):
            raise VictimRefused(f"pid: process {victim.pid} is this process, an ancestor of it, or init")
        if role not in ROLES_OF[fault.victim]:
            raise VictimRefused(f"role: process {victim.pid} is a {role.name}, the fault is for {fault.victim}")
        token = self.tokens.of(role)
        if victim.token != token:
            whose = "this run is" if role.scope == "run" else "these services are"
            raise VictimRefused(f"token: process {victim.pid} belongs to {victim.token}, {whose} {token}")
        if not role.told_by(victim.command):
            raise VictimRefused(f"role: process {victim.pid} does not name {' or '.join(role.mains)}: a stranger")
        if role.under is None and not carries_token(victim.command, token, role):
            raise VictimRefused(f"token: process {victim.pid} does not carry {token}: a stranger")

    def describe(self, planned: Occurrence, victims: Sequence[ProcessIdentity]) -> list[str]:
        """The dry run: one line for each victim, saying what would happen to it and when."""
        self.check(planned.fault, victims)
        return [f"would {planned.what(str(victim))}" for victim in victims]
