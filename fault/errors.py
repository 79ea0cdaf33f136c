"""Errors of fault plans and injections; each message is one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class FaultError(Exception):
    """Base of this package's errors; never raised itself."""


class PlanError(FaultError, ValueError):
    """Invalid fault plan; the message begins with the key."""


class DeclarationError(FaultError):
    """Invalid declaration of an action; the message begins with its file."""


class VictimRefused(FaultError):
    """Refusal of a victim by a guard check; no signal was sent."""


class TooFewVictims(VictimRefused):
    """Fewer live processes of the role than the fault needs; no signal was sent."""


class IdentityMismatch(VictimRefused):
    """Another process under the victim's pid; no signal was sent.

    `part`: the mismatch, `pid`, `user`, `create_time`, `token` or `role`.
    """

    def __init__(self, pid: int, part: str, detail: str) -> None:
        super().__init__(f"{part}: got process {pid}; expected the victim: {detail}")
        self.pid = pid
        self.part = part
        self.detail = detail


class SignalRefused(FaultError):
    """Missing permission for the signal; nothing was delivered."""


class ActionRefused(FaultError):
    """A fault that cannot be injected on the host."""


class KernelUnsupported(ActionRefused):
    """A fault that the host's kernel does not support."""


class WatchdogUnavailable(FaultError):
    """Failed start of the watchdog that would undo the fault; the fault is not injected."""


class RemoteError(FaultError):
    """Failed use of a remote host, with the command and its error output."""

    reason = "remote command failed"

    def __init__(self, host: str, command: str, stderr: str = "") -> None:
        output = " ".join(stderr.split())
        super().__init__(f"{host}: {self.reason}: {command}{': ' + output if output else ''}")
        self.host = host
        self.command = command
        self.stderr = stderr


class HostUnreachable(RemoteError):
    """Failed SSH connection; nothing was sent."""

    reason = "SSH connection failed"


class HostKeyRefused(RemoteError):
    """Host key that is unknown or differs from known_hosts; nothing was sent."""

    reason = "host key refused"


class AuthenticationRefused(RemoteError):
    """User key that the host does not accept; nothing was sent."""

    reason = "authentication failed"


class ConnectionLost(RemoteError):
    """Connection that broke while no signal was in flight."""

    reason = "SSH connection lost"


class RemoteSignalRefused(RemoteError, SignalRefused):
    """Missing permission for a signal on the remote host; nothing was delivered."""

    reason = "signal refused"


class UnsettledSignal(RemoteError):
    """Earlier signal to this victim with an unknown outcome; a probe must come first."""

    reason = "earlier signal not settled; fix: probe first"


# Error kinds that survive the transfer to another process, by name; narrower ones first.
KINDS: Mapping[str, type[FaultError]] = {
    kind.__name__: kind
    for kind in (IdentityMismatch, VictimRefused, SignalRefused, WatchdogUnavailable, KernelUnsupported, ActionRefused)
}


def error_as_json(error: Exception) -> dict[str, Any]:
    """Return an error as JSON values, for another process."""
    kind = next((name for name, one in KINDS.items() if isinstance(error, one)), type(error).__name__)
    fields = {}
    if isinstance(error, IdentityMismatch):
        fields = {"pid": error.pid, "part": error.part, "detail": error.detail}
    return {"kind": kind, "message": str(error) if isinstance(error, FaultError) else f"{kind}: {error}", **fields}


def error_from_json(values: Mapping[str, Any], prefix: str = "") -> FaultError | None:
    """Return the error that `error_as_json` wrote, its message after `prefix`; None for an unknown kind."""
    kind = KINDS.get(values["kind"])
    if kind is IdentityMismatch:
        return IdentityMismatch(values["pid"], values["part"], values["detail"])
    return (
        None if kind is None else kind(values["message"] if kind is VictimRefused else f"{prefix}{values['message']}")
    )
