"""SSH channel to one host, with an agent at the other end that runs a handler."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm

from fault.errors import (
    AuthenticationRefused,
    ConnectionLost,
    HostKeyRefused,
    HostUnreachable,
    RemoteError,
    RemoteSignalRefused,
    UnsettledSignal,
    error_from_json,
)
from fault.identity import Delivery, from_line, to_line
from fault.remote_bootstrap import PYTHON, boot_command, bootstrap_payload

CONNECTION_ERRORS = (paramiko.SSHException, OSError, EOFError)
# Maximum output to read in place of a reply.
_MAX_OUTPUT_BYTES = 2000
_KEEPALIVE_S = 5


@dataclass(frozen=True)
class RemoteHost:
    """Address and credentials of a host. Host keys come from `known_hosts` only; an unknown key is refused.

    `python`: interpreter on the host, 3.11 or newer. `timeout_s` bounds each step: connection, banner, authentication,
    channel, each reply.
    """

    host: str
    user: str
    key_file: Path
    known_hosts: Path
    port: int = 22
    python: str = PYTHON
    timeout_s: float = 10.0


class SshChannel:
    """Channel to the agent of one host, started on first use. Close it after use."""

    def __init__(self, host: RemoteHost) -> None:
        self._host = host
        self._client: paramiko.SSHClient | None = None
        self._channel: paramiko.Channel | None = None
        self._answers: Any = None
        self._request_number = 0
        self._unsettled: set[tuple[int, float]] = set()

    def close(self) -> None:
        """Close the connection and with it the agent; idempotent."""
        if self._channel is not None:
            with contextlib.suppress(*CONNECTION_ERRORS):
                self._channel.close()
            self._channel = None
        if self._client is not None:
            self._client.close()
            self._client = None

    def ask(self, do: str, **fields: Any) -> Any:
        """Return the agent's reply. Raises the handler's error, as an error of that host, or RemoteError.

        After ConnectionLost the effect is unknown. A signal then returns `unknown`, and further signals to that victim
        raise UnsettledSignal until a probe has succeeded.
        """
        command, victim = _command(do, fields), fields.get("victim")
        key = (victim.pid, victim.create_time) if do in ("signal", "probe") and victim is not None else None
        if do == "signal" and key in self._unsettled:
            raise UnsettledSignal(self._host.host, command)
        if self._channel is None or self._channel.closed or not self._is_active():
            self.close()
            self._start(command)  # no request was sent yet
        try:
            value = self._exchange(command, do, fields)
        except ConnectionLost:
            if do != "signal" or key is None:
                raise
            self._unsettled.add(key)
            return Delivery.UNKNOWN
        if do == "probe" and key is not None:
            self._unsettled.discard(key)
        return value

    def _exchange(self, command: str, do: str, what: dict[str, Any]) -> Any:
        assert self._channel is not None
        self._request_number += 1
        try:
            line = self._send({"n": self._request_number, "do": do, **what})
            if not line.endswith(b"\n"):
                raise EOFError(self._exit_reason(line))
            answer = from_line(line)
            if answer.get("n") != self._request_number:
                raise EOFError(f"unexpected reply: {line[:_MAX_OUTPUT_BYTES]!r}")
        except (*CONNECTION_ERRORS, ValueError) as error:
            self.close()
            raise ConnectionLost(self._host.host, command, stderr=str(error) or type(error).__name__) from None
        if "error" in answer:
            raise self._error(command, answer["error"])
        return answer["value"]

    def _send(self, request: dict[str, Any]) -> bytes:
        """Send a request and return the reply line; empty if the agent is gone."""
        assert self._channel is not None
        try:
            self._channel.sendall(to_line(request))
        except OSError:
            return b""
        line: bytes = self._answers.readline()
        return line

    def _error(self, command: str, error: dict[str, Any]) -> Exception:
        if error["kind"] == "SignalRefused":
            return RemoteSignalRefused(self._host.host, command, stderr=error["message"])
        found = error_from_json(error, f"{self._host.host}: ")
        return RemoteError(self._host.host, command, stderr=error["message"]) if found is None else found

    def _exit_reason(self, line: bytes) -> str:
        assert self._channel is not None
        output = b""
        with contextlib.suppress(*CONNECTION_ERRORS):
            output = self._channel.makefile_stderr("rb").read(_MAX_OUTPUT_BYTES)
        return " ".join((line + output).decode(errors="replace").split())[-300:] or "the agent ended"

    def _is_active(self) -> bool:
        transport = None if self._client is None else self._client.get_transport()
        return transport is not None and transport.is_active()

    def _start(self, command: str) -> None:
        client = self._connect(command)
        try:
            transport = client.get_transport()
            if transport is None:
                raise EOFError("the connection closed at once")
            transport.set_keepalive(_KEEPALIVE_S)
            channel = transport.open_session(timeout=self._host.timeout_s)
            channel.settimeout(self._host.timeout_s)
            channel.exec_command(boot_command(self._host.python))
        except CONNECTION_ERRORS as error:
            client.close()
            raise ConnectionLost(self._host.host, command, stderr=str(error)) from None
        self._client, self._channel, self._answers = client, channel, channel.makefile("rb")
        # A missing or old Python fails here, before any request.
        with contextlib.suppress(*CONNECTION_ERRORS):
            channel.sendall(bootstrap_payload())
        self._exchange(command, "hello", {})

    def _connect(self, command: str) -> paramiko.SSHClient:
        host, client = self._host, paramiko.SSHClient()
        try:
            client.load_host_keys(str(host.known_hosts))
            client.set_missing_host_key_policy(_RefuseUnknown())
            client.connect(
                host.host,
                port=host.port,
                username=host.user,
                pkey=self._load_key(command),
                allow_agent=False,
                look_for_keys=False,
                timeout=host.timeout_s,
                banner_timeout=host.timeout_s,
                auth_timeout=host.timeout_s,
                channel_timeout=host.timeout_s,
            )
        except RemoteError:
            client.close()
            raise
        except Exception as error:
            client.close()
            raise self._connect_error(command, error) from None
        return client

    def _load_key(self, command: str) -> paramiko.PKey:
        """Load the key file; given only its name, paramiko would report the error of the last key type only."""
        file = self._host.key_file
        try:
            return paramiko.PKey.from_path(file)
        except (OSError, ValueError, TypeError, paramiko.SSHException, UnsupportedAlgorithm) as error:
            output = f"{file}: got an unusable key ({' '.join(str(error).split())})"
            raise AuthenticationRefused(self._host.host, command, stderr=output) from None

    def _connect_error(self, command: str, error: Exception) -> Exception:
        kind: type[RemoteError]
        match error:
            case paramiko.BadHostKeyException() | _UnknownHostKey():
                kind = HostKeyRefused
            case paramiko.AuthenticationException() | paramiko.PasswordRequiredException():
                kind = AuthenticationRefused
            case paramiko.SSHException() | OSError() | EOFError():
                kind = HostUnreachable
            case _:
                return error
        return kind(self._host.host, command, stderr=str(error) or type(error).__name__)


def _command(do: str, fields: Mapping[str, Any]) -> str:
    """Return the request in words, for errors."""
    match do:
        case "find":
            return f"find {fields['victim']}"
        case "arm" | "signal":
            name = signal.Signals(fields.get("signum", signal.SIGKILL)).name
            return f"kill -s {name.removeprefix('SIG')} {fields['victim'].pid}"
        case "act":
            return f"{fields['step']} {fields['kind']}"
        case "watch" if "kind" in fields:
            return f"watch {fields['kind']}"
        case "probe" | "watch" | "release":
            return f"{do} {fields['victim'].pid}"
    return {"busy": "read CPU times", "clock": "read the clock"}.get(do, do)


class _UnknownHostKey(paramiko.SSHException):
    """A host key that known_hosts does not contain."""


class _RefuseUnknown(paramiko.RejectPolicy):
    """Refusal policy with an error type of its own."""

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> NoReturn:
        raise _UnknownHostKey(f"{hostname}: unknown {key.get_name()} key; fix: add it to known_hosts")
