"""Who a process is: the facts that must agree before it may be touched.

A pid alone is no identity, because the kernel hands pids out again. A victim is one process: its
pid, its creation time, the run's token in its command line, and its role's main class there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fault.errors import IdentityMismatch, VictimRefused

# Creation times come in kernel ticks of 10 ms; two readings of one process agree within this.
CREATE_TIME_TOLERANCE_S = 0.02
# Wall creation time = boot time + ticks, and the boot time that the kernel tells moves when the wall
# clock is set. Where the ticks are known they decide; the wall time then only has to be near.
CLOCK_STEP_TOLERANCE_S = 2.0
# Tokens are also matched by a remote shell, so they hold nothing that a shell pattern would read.
_TOKEN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=:-]*")


@dataclass(frozen=True)
class Role:
    """A kind of process, told by `main`: one whole argument of its command line.

    `order_option` is the option whose value numbers the processes of the role, if there is one.
    """

    name: str
    main: str
    order_option: str | None = None


EXECUTOR = Role("executor", "org.apache.spark.executor.CoarseGrainedExecutorBackend", "--executor-id")
ROLES: Mapping[str, Role] = {role.name: role for role in (EXECUTOR,)}


@dataclass(frozen=True)
class LiveProcess:
    """What the operating system says about a running process (never a zombie).

    `create_time`: seconds since the epoch, as psutil gives it. `start_ticks`: the same instant in
    kernel ticks since boot, which no change of the wall clock moves. `stopped`: held by SIGSTOP.
    """

    pid: int
    parent_pid: int
    create_time: float
    start_ticks: int | None
    command: tuple[str, ...]
    stopped: bool = False


@dataclass(frozen=True)
class ProcessIdentity:
    """One victim: the facts recorded when it was chosen. Raises VictimRefused for pid ≤ 1 or a bad token."""

    pid: int
    create_time: float
    role: Role
    token: str
    command: tuple[str, ...] = ()
    start_ticks: int | None = None

    def __post_init__(self) -> None:
        if self.pid <= 1:
            raise VictimRefused(f"pid: process {self.pid} is never a victim")
        require_token(self.token)

    def as_json(self) -> dict[str, Any]:
        """The form of the conductor's journal."""
        return {
            "pid": self.pid,
            "create_time": self.create_time,
            "role": self.role.name,
            "command": list(self.command),
        }

    def __str__(self) -> str:
        number = order_of(self.role, self.command)
        return f"{self.role.name}{'' if number is None else f' {number}'} (pid {self.pid}, run {self.token})"


def require_token(token: str) -> None:
    """Raises VictimRefused unless `token` can single out a run: an empty one would match everything."""
    if len(token) < 8 or not _TOKEN.fullmatch(token):
        raise VictimRefused(
            f"token: {token!r} is refused; use at least 8 letters, digits and ._=:- beginning with a letter or digit"
        )


def carries_token(command: Sequence[str], token: str) -> bool:
    """Whether an argument holds `token` as a whole: no letter or digit may touch it on either side."""
    pattern = re.compile(rf"(?<![0-9A-Za-z]){re.escape(token)}(?![0-9A-Za-z])")
    return any(pattern.search(argument) for argument in command)


def order_of(role: Role, command: Sequence[str]) -> int | None:
    """The number of a process within its role (Spark's executor id); None where it has none."""
    if role.order_option is None or role.order_option not in command[:-1]:
        return None
    value = command[command.index(role.order_option) + 1]
    return int(value) if value.isdecimal() else None


def require_match(identity: ProcessIdentity, live: LiveProcess) -> None:
    """Raises IdentityMismatch, naming the part, unless `live` is the process that `identity` names."""
    if live.pid != identity.pid:
        raise IdentityMismatch(live.pid, "pid", f"the victim is process {identity.pid}")
    apart = abs(live.create_time - identity.create_time)
    if identity.start_ticks is not None and live.start_ticks is not None:
        same = live.start_ticks == identity.start_ticks and apart <= CLOCK_STEP_TOLERANCE_S
    else:
        same = apart <= CREATE_TIME_TOLERANCE_S
    if not same:
        raise IdentityMismatch(
            live.pid, "create_time", f"it began at {live.create_time:.2f}, the victim at {identity.create_time:.2f}"
        )
    if not carries_token(live.command, identity.token):
        raise IdentityMismatch(live.pid, "token", f"its command line does not carry {identity.token}")
    if identity.role.main not in live.command:
        raise IdentityMismatch(live.pid, "role", f"its command line does not name {identity.role.main}")
