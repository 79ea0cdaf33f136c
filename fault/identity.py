"""Who a process is: the facts that must agree before it may be touched.

A pid alone is no identity, because the kernel hands pids out again. A victim is one process of the
user who acts: its pid, its creation time, its role's main class or module, and the mark of the run or of the services
in its command line. A Python worker has no mark of its own; there it is its ancestor executor's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Self

from fault.errors import IdentityMismatch, VictimRefused

# Creation times come in kernel ticks of 10 ms; two readings of one process agree within this.
CREATE_TIME_TOLERANCE_S = 0.02
# Wall creation time = boot time + ticks, and the boot time that the kernel tells moves when the wall
# clock is set. Where the ticks are known they decide; who is to be hit must have begun near that wall time, too.
CLOCK_STEP_TOLERANCE_S = 2.0
# What stands before a token in the argument that marks a process, by scope.
TAG_PREFIXES: Mapping[str, tuple[str, ...]] = {
    "run": ("-Dfaultline.run=", "faultline-run="),
    "services": ("-Dfaultline.instance=",),
}
# Tokens are also matched by a remote shell, so they hold nothing that a shell pattern would read.
_TOKEN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=:-]*")
_WORKER_URL = re.compile(r"spark://[^@]*@(.+)")


class Presence(StrEnum):
    """What is found under a victim's pid; `other` is another process that was given the pid later."""

    ALIVE = "alive"
    STOPPED = "stopped"
    GONE = "gone"
    OTHER = "other"


class Delivery(StrEnum):
    """What is known right after a signal was sent; `unknown` until a probe settles it."""

    SENT = "sent"
    GONE = "gone"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Role:
    """A kind of process, told by one of `mains`: one whole argument of its command line.

    `scope`: whose token marks it, "run" or "services". `number_option`: the option whose value
    numbers the processes of the role, if there is one. `node_options`: the options that, joined by a
    colon, say on which node (HOST:PORT of a Spark worker) it runs. `under`: the name of the role that
    carries the mark for it; such a process is a copy forked by a first process with the same main,
    and that one is a descendant of the marked process.
    """

    name: str
    mains: tuple[str, ...]
    scope: str = "run"
    number_option: str | None = None
    node_options: tuple[str, ...] = ()
    parent_role: str | None = None

    @property
    def main(self) -> str:
        """The first of the mains."""
        return self.mains[0]

    def matches(self, command: Sequence[str]) -> bool:
        """Whether a command line names one of the role's mains."""
        return any(main in command for main in self.mains)


EXECUTOR = Role(
    "executor",
    ("org.apache.spark.executor.CoarseGrainedExecutorBackend",),
    number_option="--executor-id",
    node_options=("--worker-url",),
)
WORKER = Role("worker", ("org.apache.spark.deploy.worker.Worker",), scope="services", node_options=("--host", "--port"))
DRIVER = Role("driver", ("org.apache.spark.deploy.SparkSubmit", "faultline.engines.ground_truth"))
PYTHON_WORKER = Role("python_worker", ("pyspark.daemon",), parent_role="executor")
KAFKA = Role("kafka", ("kafka.Kafka",), scope="services")
ROLES: Mapping[str, Role] = {role.name: role for role in (EXECUTOR, WORKER, DRIVER, PYTHON_WORKER, KAFKA)}
# A random process on a random node: an executor, or a Spark worker that hosts one.
ANY = "any"
# The words for victims.
VICTIMS = (*ROLES, ANY)
VICTIM_PHRASES: Mapping[str, str] = {
    EXECUTOR.name: "an executor",
    WORKER.name: "a Spark worker",
    DRIVER.name: "the driver",
    PYTHON_WORKER.name: "a Python worker",
    KAFKA.name: "the broker",
    ANY: "an executor or a Spark worker",
}


# The name under which a remote broker's host is known.
KAFKA_HOST = "kafka"


@dataclass(frozen=True)
class Tokens:
    """What marks the processes that a run may touch: its own id, and that of the services under it.

    `services` None: no service can be told from a stranger's, so none is a victim.
    Raises VictimRefused when a token could not single anything out.
    """

    run: str
    services: str | None = None

    def __post_init__(self) -> None:
        require_token(self.run)
        if self.services is not None:
            require_token(self.services)

    def of(self, role: Role) -> str:
        """The token of the role's scope. Raises VictimRefused when there is none."""
        if role.scope == "run":
            return self.run
        if self.services is None:
            raise VictimRefused(f"victim: a {role.name} cannot be told from strangers without the services' token")
        return self.services


@dataclass(frozen=True)
class LiveProcess:
    """What the operating system says about a running process (never a zombie).

    `create_time`: seconds since the epoch, as psutil gives it. `start_ticks`: the same instant in
    kernel ticks since boot, which no change of the wall clock moves. `stopped`: held by SIGSTOP. `foreign`: of another
    user than the one who looks, on that host; whatever its command line says, it is nobody of ours.
    """

    pid: int
    parent_pid: int
    create_time: float
    start_ticks: int | None
    command: tuple[str, ...]
    is_stopped: bool = False
    is_foreign: bool = False


@dataclass(frozen=True)
class ProcessIdentity:
    """One victim: the facts recorded when it was chosen. Raises VictimRefused for pid ≤ 1 or a bad token.

    `token` is the one of its role's scope; for a Python worker the run's, which its executor carries.
    `host`: the name of its host, empty for this one. `node`: HOST:PORT of the Spark worker that it is
    or belongs to, None for other roles.
    """

    pid: int
    create_time: float
    role: Role
    token: str
    command: tuple[str, ...] = ()
    start_ticks: int | None = None
    host: str = ""
    node: str | None = None

    def __post_init__(self) -> None:
        if self.pid <= 1:
            raise VictimRefused(f"pid: process {self.pid} is never a victim")
        require_token(self.token)

    @property
    def number(self) -> int | None:
        """Its number within its role (Spark's executor id); None where it has none."""
        return number_of(self.role, self.command)

    def as_json(self) -> dict[str, Any]:
        """The form of the conductor's journal."""
        return {
            "pid": self.pid,
            "create_time": self.create_time,
            "start_ticks": self.start_ticks,
            "role": self.role.name,
            "command": list(self.command),
            "host": self.host,
            "node": self.node,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any], tokens: Tokens) -> Self:
        """The victim that `as_json` wrote, under the run's tokens. Raises VictimRefused."""
        role = ROLES[values["role"]]
        return cls(
            int(values["pid"]),
            float(values["create_time"]),
            role,
            tokens.of(role),
            tuple(values["command"]),
            start_ticks=values["start_ticks"],
            host=str(values["host"]),
            node=values["node"],
        )

    def __str__(self) -> str:
        number = "" if self.number is None else f" {self.number}"
        host = f" on {self.host}" if self.host else ""
        return f"{self.role.name}{number} (pid {self.pid}{host}, {self.role.scope} {self.token})"


def to_line(value: Any) -> bytes:
    """A value in which victims occur, as one JSON line; each host calls its own processes local."""

    def form_of(victim: ProcessIdentity) -> dict[str, Any]:
        return {**victim.as_json(), "host": "", "token": victim.token, "mains": list(victim.role.mains)}

    return json.dumps(value, default=form_of).encode() + b"\n"


def from_line(line: bytes) -> Any:
    """What `to_line` wrote. Raises ValueError, and VictimRefused for an identity that cannot be."""
    return json.loads(line, object_hook=lambda one: _victim_of(one) if one.keys() >= {"token", "mains"} else one)


def _victim_of(form: Mapping[str, Any]) -> ProcessIdentity:
    role = replace(ROLES[form["role"]], mains=tuple(form["mains"]))
    return ProcessIdentity(
        int(form["pid"]),
        float(form["create_time"]),
        role,
        str(form["token"]),
        tuple(form["command"]),
        start_ticks=form["start_ticks"],
        host=str(form["host"]),
        node=form["node"],
    )


def require_token(token: str) -> None:
    """Raises VictimRefused unless `token` can single out a run: an empty one would match everything."""
    if len(token) < 8 or not _TOKEN.fullmatch(token):
        raise VictimRefused(
            f"token: {token!r} is refused; use at least 8 letters, digits and ._=:- beginning with a letter or digit"
        )


def tags_of(role: Role, token: str) -> tuple[str, ...]:
    """The arguments, any of which marks a process of the role as `token`'s."""
    return tuple(f"{mark}{token}" for mark in TAG_PREFIXES[role.scope])


def has_token(command: Sequence[str], token: str, role: Role = EXECUTOR) -> bool:
    """Whether one whole argument is a mark of the role's scope with exactly this token."""
    return any(mark in command for mark in tags_of(role, token))


def number_of(role: Role, command: Sequence[str]) -> int | None:
    """The number of a process within its role (Spark's executor id); None where it has none."""
    value = None if role.number_option is None else _option(command, role.number_option)
    return int(value) if value is not None and value.isdecimal() and value.isascii() else None


def node_of(role: Role, command: Sequence[str]) -> str | None:
    """HOST:PORT of the Spark worker that the command line names; None where it names none."""
    values = [_option(command, option) for option in role.node_options]
    known = [value for value in values if value]
    if not known or len(known) != len(values):
        return None
    url = _WORKER_URL.fullmatch(known[0])
    return url.group(1) if url else ":".join(known)


def require_same(identity: ProcessIdentity, live: LiveProcess, *, by_ticks: bool = False) -> None:
    """Raises IdentityMismatch, naming the part, unless `live` is the process that `identity` names.

    For a role that is marked through another process this says nothing about whose it is now. `by_ticks`: ticks that
    are known decide alone, for what harms nobody: one that is paused is found also if the clock was set meanwhile.
    """
    if live.pid != identity.pid:
        raise IdentityMismatch(live.pid, "pid", f"the victim is process {identity.pid}")
    if live.is_foreign:
        raise IdentityMismatch(live.pid, "user", "it belongs to another user")
    apart = abs(live.create_time - identity.create_time)
    if identity.start_ticks is not None and live.start_ticks is not None:
        same = live.start_ticks == identity.start_ticks and (by_ticks or apart <= CLOCK_STEP_TOLERANCE_S)
    else:
        same = apart <= CREATE_TIME_TOLERANCE_S
    if not same:
        raise IdentityMismatch(
            live.pid, "create_time", f"it began at {live.create_time:.2f}, the victim at {identity.create_time:.2f}"
        )
    role = identity.role
    if role.parent_role is None and not has_token(live.command, identity.token, role):
        raise IdentityMismatch(live.pid, "token", f"its command line does not carry {identity.token}")
    if not role.matches(live.command):
        raise IdentityMismatch(live.pid, "role", f"its command line does not name {' or '.join(role.mains)}")


def require_match(identity: ProcessIdentity, live: LiveProcess, ancestors: Sequence[LiveProcess] = ()) -> None:
    """Raises IdentityMismatch, naming the part, unless `live` is `identity`'s process and still its run's.

    `ancestors`: parent first; needed only for a role that is marked through another.
    """
    require_same(identity, live)
    role = identity.role
    if role.parent_role is None:
        return
    if not is_forked_copy(role, live, ancestors):
        raise IdentityMismatch(live.pid, "role", f"it is not a process that {role.main} forked")
    marked = marked_ancestor(role, ancestors)
    if marked is None or not has_token(marked.command, identity.token, role):
        raise IdentityMismatch(live.pid, "token", f"it belongs to no {role.parent_role} that carries {identity.token}")


def is_forked_copy(role: Role, live: LiveProcess, ancestors: Sequence[LiveProcess]) -> bool:
    """Whether `live` is the direct fork of a first process with the role's main, and shows that main itself."""
    matches = [role.matches(process.command) for process in (live, *ancestors[:2])]
    return matches in ([True, True], [True, True, False])


def marked_ancestor(role: Role, ancestors: Sequence[LiveProcess]) -> LiveProcess | None:
    """The nearest ancestor of the role that carries the mark for `role`; whose mark it is, is not asked.

    None also when it is another user's.
    """
    if role.parent_role is None:
        return None
    over = ROLES[role.parent_role]
    found = next((process for process in ancestors if over.matches(process.command)), None)
    return None if found is None or found.is_foreign else found


def _option(command: Sequence[str], option: str) -> str | None:
    """The argument after `option`; None where there is none."""
    return command[command.index(option) + 1] if option in command[:-1] else None
