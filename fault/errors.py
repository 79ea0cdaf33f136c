"""What can go wrong when a fault is planned or injected; each message is one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class FaultError(Exception):
    """Base of this package's errors; never raised itself."""


class PlanError(FaultError, ValueError):
    """A fault plan is not valid. The message begins with the offending key."""


class DeclarationError(FaultError):
    """An action says something of itself that cannot be. The message begins with its file."""


class VictimRefused(FaultError):
    """A guard rail forbids touching this process. No signal was sent."""


class TooFewVictims(VictimRefused):
    """Fewer processes of the role are alive than the fault asks for. No signal was sent."""


class IdentityMismatch(VictimRefused):
    """The live process under the victim's pid is not the victim. No signal was sent.

    `part` says what did not match: `pid`, `user`, `create_time`, `token` or `role`.
    """

    def __init__(self, pid: int, part: str, detail: str) -> None:
        super().__init__(f"{part}: process {pid} is refused: {detail}")
        self.pid = pid
        self.part = part
        self.detail = detail


class SignalRefused(FaultError):
    """The operating system refused the signal (no permission). Nothing was delivered."""


class ActionRefused(FaultError):
    """What was to be done to a host cannot be done there."""


class KernelUnsupported(ActionRefused):
    """The host's kernel has not what it takes."""


class WatchdogUnavailable(FaultError):
    """No watchdog could be started that undoes the act; so it is not done."""


class RemoteError(FaultError):
    """A remote host could not be used; carries what was tried there and what it said."""

    reason = "the remote command failed"

    def __init__(self, host: str, command: str, stderr: str = "") -> None:
        said = " ".join(stderr.split())
        super().__init__(f"{host}: {self.reason}: {command}{': ' + said if said else ''}")
        self.host = host
        self.command = command
        self.stderr = stderr


class HostUnreachable(RemoteError):
    """No SSH connection could be made; nothing was sent."""

    reason = "the host cannot be reached over SSH"


class HostKeyRefused(RemoteError):
    """The host's key is unknown or another than known_hosts says; nothing was sent."""

    reason = "the host key is refused"


class AuthenticationRefused(RemoteError):
    """The host does not accept the user's key; nothing was sent."""

    reason = "the host refuses the key"


class ConnectionLost(RemoteError):
    """The connection broke, and no signal was on its way."""

    reason = "the SSH connection was lost"


class RemoteSignalRefused(RemoteError, SignalRefused):
    """The remote operating system refused the signal. Nothing was delivered."""

    reason = "the signal is refused"


class UnsettledSignal(RemoteError):
    """An earlier signal to this victim has an unknown outcome; probe before sending another."""

    reason = "an earlier signal is not settled, probe first"


# Those that whoever asked another process can tell apart, by name; the narrower ones first.
KINDS: Mapping[str, type[FaultError]] = {
    kind.__name__: kind
    for kind in (IdentityMismatch, VictimRefused, SignalRefused, WatchdogUnavailable, KernelUnsupported, ActionRefused)
}


def as_message(error: Exception) -> dict[str, Any]:
    """An error as JSON values, for another process."""
    kind = next((name for name, one in KINDS.items() if isinstance(error, one)), type(error).__name__)
    more = {"pid": error.pid, "part": error.part, "detail": error.detail} if isinstance(error, IdentityMismatch) else {}
    return {"kind": kind, "said": str(error) if isinstance(error, FaultError) else f"{kind}: {error}", **more}


def error_of(told: Mapping[str, Any], where: str = "") -> FaultError | None:
    """Return the error that `as_message` wrote, with `where` in front; None for an unknown kind."""
    kind = KINDS.get(told["kind"])
    if kind is IdentityMismatch:
        return IdentityMismatch(told["pid"], told["part"], told["detail"])
    return None if kind is None else kind(told["said"] if kind is VictimRefused else f"{where}{told['said']}")
