"""The injector for processes of another host, over SSH.

Check and signal are one shell program on that host, so nothing of the network lies between them.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import paramiko

from fault.busy import BUSY_NS
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
from fault.identity import ProcessIdentity, Tokens
from fault.injector import Delivery, Presence
from fault.remote_shell import (
    RELEASE,
    SIGNAL_REFUSED,
    STANDING,
    act_program,
    parse_survey,
    parse_watch,
    stand_by_program,
    survey_program,
    watch_program,
    words_of,
)
from fault.victims import select

_DATE = "date +%s%N"


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
    """The words of the lines that a remote program said, and how it ended; None = no exit status came."""

    lines: tuple[tuple[str, ...], ...]
    status: int | None
    stderr: str

    @property
    def verdict(self) -> tuple[str, ...]:
        """The last line, e.g. ("sent",); empty when it said nothing."""
        return self.lines[-1] if self.lines else ()


@dataclass(frozen=True)
class ClockOffset:
    """The remote wall clock minus ours in s, true within half of the round trip (in s) that it was read over."""

    offset_s: float
    round_trip_s: float


class RemoteInjector:
    """Signals processes of one remote host. Close it after use; it connects when first needed."""

    def __init__(self, host: RemoteHost) -> None:
        self._host = host
        self._client: paramiko.SSHClient | None = None
        self._unsettled: set[tuple[int, float]] = set()
        self._posts: dict[tuple[int, float], paramiko.Channel] = {}

    def __enter__(self) -> RemoteInjector:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection; harmless when there is none."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def find(self, victim: str, tokens: Tokens) -> tuple[ProcessIdentity, ...]:
        """The live candidates for a victim word on that host, by the same rules as here; only reads.

        Raises VictimRefused when a needed token is missing, RemoteError when the host cannot tell.
        """
        command = f"find {victim}"
        answer = self._read(command, survey_program())
        try:
            snapshot = parse_survey(answer.lines, self._host.host)
        except ValueError as error:
            raise RemoteError(self._host.host, command, answer.status, f"{answer.stderr} {error}") from None
        return select(victim, tokens, snapshot)

    def busy(self, candidates: Sequence[ProcessIdentity]) -> set[ProcessIdentity]:
        """Those that worked during some 20 ms just now; see `fault.busy`. Raises RemoteError."""
        if not candidates:
            return set()
        used = parse_watch(self._read("read CPU times", watch_program(candidates)).lines)
        return {candidate for candidate in candidates if used.get(candidate.pid, 0) >= BUSY_NS}

    def clock_offset(self, samples: int = 5) -> ClockOffset:
        """Reads the remote wall clock `samples` times; the reading with the shortest round trip counts.

        The remote instant is taken as the middle of the round trip. Raises RemoteError.
        """
        channel = self._channel(_DATE)
        found: list[ClockOffset] = []
        try:
            with contextlib.closing(channel):
                answers = channel.makefile("rb")
                while len(found) < samples:
                    wall_ns, began_ns = time.time_ns(), time.monotonic_ns()
                    channel.sendall(f"{_DATE} || exit\n".encode())
                    answer = answers.readline().strip()
                    round_trip_ns = time.monotonic_ns() - began_ns
                    if not answer:
                        raise EOFError("the host gave no time")
                    if not answer.isdigit() or len(answer) < 19:
                        raise RemoteError(
                            self._host.host, _DATE, stderr=f"no time in ns: {answer.decode(errors='replace')}"
                        )
                    offset_ns = int(answer) - wall_ns - round_trip_ns / 2
                    found.append(ClockOffset(offset_ns / 1e9, round_trip_ns / 1e9))
        except (paramiko.SSHException, OSError, EOFError) as error:
            self.close()
            raise ConnectionLost(self._host.host, _DATE, stderr=str(error)) from None
        return min(found, key=lambda one: one.round_trip_s)

    def probe(self, victim: ProcessIdentity) -> Presence:
        """What is under the victim's pid now. Raises RemoteError when the host cannot tell."""
        answer = self._read(f"probe {victim.pid}", act_program(victim, "probe"))
        self._unsettled.discard(_key(victim))
        return Presence.OTHER if answer.verdict[0] == "mismatch" else Presence(answer.verdict[0])

    def arm(self, victim: ProcessIdentity) -> None:
        """Connects, so that the next signal need not. Raises RemoteError; nothing was sent."""
        self._transport(f"kill {victim.pid}")

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
            answer = self._ask(channel, act_program(victim, name))
        except (paramiko.SSHException, OSError, EOFError):
            self.close()
            return Delivery.UNKNOWN
        if not answer.verdict and answer.status in (None, 0):
            # The program may have got as far as the signal; only its word was lost.
            return Delivery.UNKNOWN
        self._unsettled.discard(_key(victim))
        if answer.status == SIGNAL_REFUSED:
            raise RemoteSignalRefused(self._host.host, command, answer.status, answer.stderr)
        if not answer.verdict:
            raise RemoteError(self._host.host, command, answer.status, answer.stderr)
        if answer.verdict[0] == "mismatch":
            raise IdentityMismatch(victim.pid, answer.verdict[1], " ".join(answer.verdict[2:]))
        return Delivery(answer.verdict[0])

    def stand_by(self, victim: ProcessIdentity, seconds: float) -> None:
        """Posts a shell on that host; when the connection breaks, it stays. Raises IdentityMismatch or RemoteError."""
        command = f"stand by {victim.pid}"
        post = self._posts.pop(_key(victim), None)
        if post is not None and not post.closed and not post.exit_status_ready():
            self._posts[_key(victim)] = post
            return
        channel = self._channel(command)
        try:
            channel.sendall(stand_by_program(victim, seconds).encode())
            said = words_of(channel.makefile("rb").readline().decode(errors="replace"))
        except (paramiko.SSHException, OSError, EOFError) as error:
            self.close()
            raise ConnectionLost(self._host.host, command, stderr=str(error)) from None
        if said == [STANDING]:
            self._posts[_key(victim)] = channel
            return
        channel.close()
        match said:
            case ["gone"]:
                return
            case ["mismatch", part, *detail]:
                raise IdentityMismatch(victim.pid, part, " ".join(detail))
        raise RemoteError(self._host.host, command, stderr="nobody stands there")

    def stand_down(self, victim: ProcessIdentity) -> None:
        """Sends it home. Where the word cannot be sent, it leaves by itself once the victim runs."""
        post = self._posts.pop(_key(victim), None)
        if post is not None:
            with contextlib.suppress(paramiko.SSHException, OSError, EOFError):
                post.sendall(RELEASE.encode())
            post.close()

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

    def _read(self, command: str, program: str) -> _Answer:
        """What a program said that touches nothing. Raises RemoteError, also when it said nothing."""
        channel = self._channel(command)
        try:
            answer = self._ask(channel, program)
        except (paramiko.SSHException, OSError, EOFError) as error:
            self.close()
            raise ConnectionLost(self._host.host, command, stderr=str(error)) from None
        if answer.status is None:
            raise ConnectionLost(self._host.host, command, stderr=answer.stderr)
        if answer.status != 0 or not answer.verdict:
            raise RemoteError(self._host.host, command, answer.status, answer.stderr)
        return answer

    def _ask(self, channel: paramiko.Channel, program: str) -> _Answer:
        with contextlib.closing(channel):
            channel.sendall(program.encode())
            channel.shutdown_write()
            output = channel.makefile("rb").read().decode(errors="replace")
            stderr = channel.makefile_stderr("rb").read().decode(errors="replace")
            ended = channel.status_event.wait(self._host.timeout_s)
            # -1 is the library's word for a channel that closed without an exit status.
            status = channel.exit_status if ended and channel.exit_status >= 0 else None
        said = (words_of(line) for line in output.splitlines())
        return _Answer(tuple(tuple(words) for words in said if words), status, stderr)

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
