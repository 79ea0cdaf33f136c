"""Identity of a process: the facts that must match before it is signalled.

A pid alone is not an identity, because the kernel reuses pids. A victim is one process of the current user: pid,
creation time, main class or module of its role, and a token on its command line, which names the run or the services
that started it. A Python worker has no token of its own; the token of its ancestor executor counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Self

from fault.errors import IdentityMismatch, VictimRefused

# Kernel ticks are 10 ms; two readings of one process agree within this.
CREATE_TIME_TOLERANCE_S = 0.02
# Wall creation time = boot time + ticks, and the reported boot time moves when the wall clock is set. Known ticks
# decide, but a victim's wall time must also be near.
CLOCK_STEP_TOLERANCE_S = 2.0
# Prefixes before the token in the argument that marks a process, by scope.
TAG_PREFIXES: Mapping[str, tuple[str, ...]] = {
    "run": ("-Dfaultline.run=", "faultline-run="),
    "services": ("-Dfaultline.instance=",),
}
# A remote shell may expand tokens, so they contain no pattern characters.
_TOKEN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=:-]*")
_WORKER_URL = re.compile(r"spark://[^@]*@(.+)")


class Presence(StrEnum):
    """State of a victim's pid; `other` is a different process that reuses the pid."""

    ALIVE = "alive"
    STOPPED = "stopped"
    GONE = "gone"
    OTHER = "other"


class Delivery(StrEnum):
    """State of a signal right after it was sent; `unknown` until a probe of the victim settles it."""

    SENT = "sent"
    GONE = "gone"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Role:
    """A kind of process, recognised by one of `mains` as a whole argument of its command line.

    `scope`: whose token marks it, "run" or "services". `number_option`: option that numbers the processes of the role.
    `node_options`: options that, joined by a colon, give its node (HOST:PORT of a Spark worker). `parent_role`: role of
    the ancestor that carries the token instead, such as a Python worker's executor. A process of such a role is forked
    by another process with the same main, which descends from that ancestor.
    """

    name: str
    mains: tuple[str, ...]
    scope: str = "run"
    number_option: str | None = None
    node_options: tuple[str, ...] = ()
    parent_role: str | None = None

    @property
    def main(self) -> str:
        """The first of the mains, for messages."""
        return self.mains[0]

    def matches(self, command: Sequence[str]) -> bool:
        """Return whether a command line names one of the role's mains."""
        return any(main in command for main in self.mains)


EXECUTOR = Role(
    "executor",
    (
        "org.apache.spark.executor.CoarseGrainedExecutorBackend",
        "org.apache.flink.runtime.taskexecutor.TaskManagerRunner",
    ),
    number_option="--executor-id",
    node_options=("--worker-url",),
)
WORKER = Role("worker", ("org.apache.spark.deploy.worker.Worker",), scope="services", node_options=("--host", "--port"))
DRIVER = Role(
    "driver",
    (
        "org.apache.spark.deploy.SparkSubmit",
        "org.apache.flink.container.entrypoint.StandaloneApplicationClusterEntryPoint",
        "faultline.engines.ground_truth",
    ),
)
PYTHON_WORKER = Role("python_worker", ("pyspark.daemon",), parent_role="executor")
KAFKA = Role("kafka", ("kafka.Kafka",), scope="services")
ROLES: Mapping[str, Role] = {role.name: role for role in (EXECUTOR, WORKER, DRIVER, PYTHON_WORKER, KAFKA)}
# A random process on a random node: an executor, or a Spark worker that hosts one.
ANY = "any"
# All values of a fault's `victim`.
VICTIMS = (*ROLES, ANY)
VICTIM_PHRASES: Mapping[str, str] = {
    EXECUTOR.name: "an executor",
    WORKER.name: "a Spark worker",
    DRIVER.name: "the driver",
    PYTHON_WORKER.name: "a Python worker",
    KAFKA.name: "the broker",
    ANY: "an executor or a Spark worker",
}


# Name of the host of a remote broker.
KAFKA_HOST = "kafka"


@dataclass(frozen=True)
class Tokens:
    """Tokens of the processes that a run may signal: `run` marks its own, `services` those of the embedded services.

    `services` None: the services' processes cannot be identified, so none is a victim. Raises VictimRefused for an
    unusable token.
    """

    run: str
    services: str | None = None

    def __post_init__(self) -> None:
        require_token(self.run)
        if self.services is not None:
            require_token(self.services)

    def of(self, role: Role) -> str:
        """Return the token of the role's scope. Raises VictimRefused if there is none."""
        if role.scope == "run":
            return self.run
        if self.services is None:
            raise VictimRefused(f"victim: got {role.name} without a services token; expected one")
        return self.services


@dataclass(frozen=True)
class LiveProcess:
    """A running process as the operating system reports it (never a zombie).

    `create_time`: seconds since the epoch, as in psutil. `start_ticks`: the same instant in kernel ticks since boot,
    independent of the wall clock. `is_stopped`: stopped by SIGSTOP. `is_foreign`: owned by another user than the
    current one, whatever its command line says.
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

    `token`: that of its role's scope; a Python worker has its executor's. `host`: name of its host, empty for this one.
    `node`: HOST:PORT of its Spark worker, None for other roles.
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
            raise VictimRefused(f"pid: got {self.pid}; expected more than 1")
        require_token(self.token)

    @property
    def number(self) -> int | None:
        """Number within its role (Spark's executor id), or None."""
        return number_of(self.role, self.command)

    def as_json(self) -> dict[str, Any]:
        """Return the form used in the fault scheduler's journal."""
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
        """Return the victim that `as_json` wrote, with the run's tokens. Raises VictimRefused."""
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
    """Return a value that may contain victims as one JSON line, without their host: to the receiver they are local."""

    def form_of(victim: ProcessIdentity) -> dict[str, Any]:
        return {**victim.as_json(), "host": "", "token": victim.token, "mains": list(victim.role.mains)}

    return json.dumps(value, default=form_of).encode() + b"\n"


def from_line(line: bytes) -> Any:
    """Return the value of `to_line`. Raises ValueError, or VictimRefused for an invalid identity."""
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
    """Raise VictimRefused unless `token` can identify a run: an empty one would match everything."""
    if len(token) < 8 or not _TOKEN.fullmatch(token):
        raise VictimRefused(
            f"token: got {token!r}; expected 8 or more of letters, digits and ._=:-, starting with a letter or digit"
        )


def tags_of(role: Role, token: str) -> tuple[str, ...]:
    """Return the arguments that mark a process of the role with this token; any of them suffices."""
    return tuple(f"{mark}{token}" for mark in TAG_PREFIXES[role.scope])


def has_token(command: Sequence[str], token: str, role: Role = EXECUTOR) -> bool:
    """Return whether a whole argument is a tag of the role's scope with this token."""
    return any(mark in command for mark in tags_of(role, token))


def number_of(role: Role, command: Sequence[str]) -> int | None:
    """Return the number of a process within its role (Spark's executor id), or None."""
    value = None if role.number_option is None else _option(command, role.number_option)
    return int(value) if value is not None and value.isdecimal() and value.isascii() else None


def node_of(role: Role, command: Sequence[str]) -> str | None:
    """Return HOST:PORT of the Spark worker on the command line, or None."""
    values = [_option(command, option) for option in role.node_options]
    known = [value for value in values if value]
    if not known or len(known) != len(values):
        return None
    url = _WORKER_URL.fullmatch(known[0])
    return url.group(1) if url else ":".join(known)


def require_same(identity: ProcessIdentity, live: LiveProcess, *, by_ticks: bool = False) -> None:
    """Raise IdentityMismatch unless `live` is the process that `identity` names.

    The token is not checked for a role with a `parent_role`. `by_ticks`: start ticks alone decide if they are known; a
    paused process is then found even if the clock was set meanwhile. For harmless requests only.
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
    """Raise IdentityMismatch unless `live` is the process of `identity` and belongs to its run.

    `ancestors`: parent first; needed only for a role with a `parent_role`.
    """
    require_same(identity, live)
    role = identity.role
    if role.parent_role is None:
        return
    if not is_forked_copy(role, live, ancestors):
        raise IdentityMismatch(live.pid, "role", f"it is not a process that {role.main} forked")
    marked = marked_ancestor(role, ancestors)
    if marked is None or not has_token(marked.command, identity.token, role):
        raise IdentityMismatch(
            live.pid, "token", f"it does not belong to a {role.parent_role} that carries {identity.token}"
        )


def is_forked_copy(role: Role, live: LiveProcess, ancestors: Sequence[LiveProcess]) -> bool:
    """Return whether `live` has the role's main and was forked by a process with the same main, itself not a copy."""
    matches = [role.matches(process.command) for process in (live, *ancestors[:2])]
    return matches in ([True, True], [True, True, False])


def marked_ancestor(role: Role, ancestors: Sequence[LiveProcess]) -> LiveProcess | None:
    """Return the nearest ancestor with the parent role, or None; its token is not checked.

    An ancestor of another user counts as None.
    """
    if role.parent_role is None:
        return None
    parent = ROLES[role.parent_role]
    nearest = next((process for process in ancestors if parent.matches(process.command)), None)
    return None if nearest is None or nearest.is_foreign else nearest


def _option(command: Sequence[str], option: str) -> str | None:
    """Return the argument after `option`, or None."""
    return command[command.index(option) + 1] if option in command[:-1] else None
