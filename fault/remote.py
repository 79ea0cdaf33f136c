"""The injector for processes of another host, over SSH.

Check and signal are one shell program on that host, so nothing of the network lies between them.
It travels over standard input: on a command line it would carry the very tokens that mark victims.
"""

from __future__ import annotations

import contextlib
import shlex
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import paramiko

from fault.errors import (
    AuthenticationRefused,
    ConnectionLost,
    HostKeyRefused,
    HostUnreachable,
    IdentityMismatch,
    RemoteError,
    RemoteSignalRefused,
    UnsettledSignal,
)
from fault.identity import CLOCK_STEP_TOLERANCE_S, CREATE_TIME_TOLERANCE_S, ProcessIdentity
from fault.injector import Delivery, Presence

_SIGNAL_REFUSED = 77

# Everything stands in one function that is called by the last line: a program cut off on its way
# does nothing. Fields of /proc/<pid>/stat count from behind the last parenthesis, since a name may
# hold anything; field 3 is then the first and field 22, the start in ticks, the twentieth.
_PROGRAM = """
LC_ALL=C; export LC_ALL
say() { printf 'faultline %s\\n' "$*"; exit 0; }
act() {
  pid=$1 ticks=$2 created=$3 slack=$4 token=$5 main=$6 signal=$7
  nl='
'
  stat=$(cat "/proc/$pid/stat" 2>/dev/null) || say gone
  set -f
  set -- ${stat##*) }
  state=$1
  shift 19
  started=$1
  case $state in Z|X|x) say gone ;; esac
  if [ "$ticks" != - ] && [ "$ticks" != "$started" ]; then
    say mismatch create_time "it began at tick $started, the victim at $ticks"
  fi
  hertz=$(getconf CLK_TCK) || exit 78
  boot=
  while read -r key value; do [ "$key" = btime ] && boot=$value; done </proc/stat
  apart=$((boot * 100 + started * 100 / hertz - created))
  if [ "${apart#-}" -gt "$slack" ]; then
    say mismatch create_time "it began $apart hundredths of a second after the victim"
  fi
  command=$(tr '\\000' '\\n' <"/proc/$pid/cmdline" 2>/dev/null) || say gone
  case "$nl$command$nl" in
    *[!0-9A-Za-z]"$token"[!0-9A-Za-z]*) ;;
    *) [ "$signal" = probe ] && [ -z "$command" ] && say alive
       say mismatch token "its command line does not carry $token" ;;
  esac
  case "$nl$command$nl" in
    *"$nl$main$nl"*) ;;
    *) say mismatch role "its command line does not name $main" ;;
  esac
  if [ "$signal" = probe ]; then
    case $state in T|t) say stopped ;; *) say alive ;; esac
  fi
  kill -s "$signal" "$pid" && say sent
  [ -d "/proc/$pid" ] || say gone
  exit 77
}
"""


@dataclass(frozen=True)
class RemoteHost:
    """Where and how to connect. Host keys come from `known_hosts` alone; an unknown key is refused.

    `timeout_s` bounds each step: connecting, the banner, authentication, opening a channel, each answer.
    """

    host: str
    user: str
    key_file: Path
    known_hosts: Path
    port: int = 22
    timeout_s: float = 10.0
    keepalive_s: int = 5


@dataclass(frozen=True)
class _Answer:
    """What a remote program said: its verdict, e.g. ("sent",), and how it ended; None = no exit status came."""

    verdict: tuple[str, ...]
    status: int | None
    stderr: str


class RemoteInjector:
    """Signals processes of one remote host. Close it after use; it connects when first needed."""

    def __init__(self, host: RemoteHost) -> None:
        self._host = host
        self._client: paramiko.SSHClient | None = None
        self._unsettled: set[tuple[int, float]] = set()

    def __enter__(self) -> RemoteInjector:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection; harmless when there is none."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def probe(self, victim: ProcessIdentity) -> Presence:
        """What is under the victim's pid now. Raises RemoteError when the host cannot tell."""
        command = f"probe {victim.pid}"
        channel = self._channel(command)
        try:
            answer = self._ask(channel, _program(victim, "probe"))
        except (paramiko.SSHException, OSError, EOFError) as error:
            self.close()
            raise ConnectionLost(self._host.host, command, stderr=str(error)) from None
        if answer.status is None:
            raise ConnectionLost(self._host.host, command, stderr=answer.stderr)
        if answer.status != 0 or not answer.verdict:
            raise RemoteError(self._host.host, command, answer.status, answer.stderr)
        self._unsettled.discard(_key(victim))
        return Presence.OTHER if answer.verdict[0] == "mismatch" else Presence(answer.verdict[0])

    def signal(self, victim: ProcessIdentity, signum: int) -> Delivery:
        """Checks the identity there and sends `signum`, once.

        `unknown` when the connection broke after the program was on its way. From then on every
        further signal to this victim raises UnsettledSignal, until a probe has answered.
        Raises IdentityMismatch, RemoteSignalRefused or another RemoteError; then nothing was sent.
        """
        name = signal.Signals(signum).name.removeprefix("SIG")
        command = f"kill -s {name} {victim.pid}"
        if _key(victim) in self._unsettled:
            raise UnsettledSignal(self._host.host, command)
        channel = self._channel(command)
        self._unsettled.add(_key(victim))
        try:
            answer = self._ask(channel, _program(victim, name))
        except (paramiko.SSHException, OSError, EOFError):
            self.close()
            return Delivery.UNKNOWN
        if not answer.verdict and answer.status in (None, 0):
            # The program may have got as far as the signal; only its word was lost.
            return Delivery.UNKNOWN
        self._unsettled.discard(_key(victim))
        if answer.status == _SIGNAL_REFUSED:
            raise RemoteSignalRefused(self._host.host, command, answer.status, answer.stderr)
        if not answer.verdict:
            raise RemoteError(self._host.host, command, answer.status, answer.stderr)
        if answer.verdict[0] == "mismatch":
            raise IdentityMismatch(victim.pid, answer.verdict[1], " ".join(answer.verdict[2:]))
        return Delivery(answer.verdict[0])

    def _channel(self, command: str) -> paramiko.Channel:
        """A fresh channel that runs a shell. Nothing has been told to the host when this raises."""
        transport = self._transport(command)
        try:
            channel = transport.open_session(timeout=self._host.timeout_s)
            channel.settimeout(self._host.timeout_s)
            channel.exec_command("exec sh -s")
        except (paramiko.SSHException, OSError, EOFError) as error:
            self.close()
            raise ConnectionLost(self._host.host, command, stderr=str(error)) from None
        return channel

    def _ask(self, channel: paramiko.Channel, program: str) -> _Answer:
        with contextlib.closing(channel):
            channel.sendall(program.encode())
            channel.shutdown_write()
            output = channel.makefile("rb").read().decode(errors="replace")
            stderr = channel.makefile_stderr("rb").read().decode(errors="replace")
            ended = channel.status_event.wait(self._host.timeout_s)
            # -1 is the library's word for a channel that closed without an exit status.
            status = channel.exit_status if ended and channel.exit_status >= 0 else None
        verdict: tuple[str, ...] = ()
        for line in output.splitlines():
            words = line.split(" ")
            if words[0] == "faultline":
                verdict = tuple(words[1:])
        return _Answer(verdict, status, stderr)

    def _transport(self, command: str) -> paramiko.Transport:
        transport = None if self._client is None else self._client.get_transport()
        if transport is not None and transport.is_active():
            return transport
        self.close()
        host = self._host
        client = paramiko.SSHClient()
        try:
            client.load_host_keys(str(host.known_hosts))
            client.set_missing_host_key_policy(_RefuseUnknown())
            client.connect(
                host.host,
                port=host.port,
                username=host.user,
                key_filename=str(host.key_file),
                allow_agent=False,
                look_for_keys=False,
                timeout=host.timeout_s,
                banner_timeout=host.timeout_s,
                auth_timeout=host.timeout_s,
                channel_timeout=host.timeout_s,
            )
        except Exception as error:
            client.close()
            raise self._connect_error(command, error) from None
        transport = client.get_transport()
        if transport is None:
            client.close()
            raise HostUnreachable(host.host, command, stderr="the connection closed at once")
        transport.set_keepalive(host.keepalive_s)
        self._client = client
        return transport

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


class _UnknownHostKey(paramiko.SSHException):
    """The host showed a key that known_hosts does not hold."""


class _RefuseUnknown(paramiko.RejectPolicy):
    """Refuses like its base, with a type of its own, so that no caller has to read messages."""

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> NoReturn:
        raise _UnknownHostKey(f"{hostname} shows a {key.get_name()} key that known_hosts does not hold; add it there")


def _key(victim: ProcessIdentity) -> tuple[int, float]:
    return victim.pid, victim.create_time


def _program(victim: ProcessIdentity, act: str) -> str:
    """The whole shell program for one act (`probe` or a signal's name without SIG)."""
    known = victim.start_ticks is not None
    arguments = [
        str(victim.pid),
        str(victim.start_ticks) if known else "-",
        str(round(victim.create_time * 100)),
        str(round(100 * (CLOCK_STEP_TOLERANCE_S if known else CREATE_TIME_TOLERANCE_S))),
        victim.token,
        victim.role.main,
        act,
    ]
    return f"{_PROGRAM}act {shlex.join(arguments)}\n"
