"""The SSH channel without a network: the agent runs on this host, behind a fake connection."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import paramiko
import pytest

from fault.errors import (
    ActionRefused,
    AuthenticationRefused,
    ConnectionLost,
    HostKeyRefused,
    HostUnreachable,
    IdentityMismatch,
    RemoteError,
    RemoteSignalRefused,
    UnsettledSignal,
    VictimRefused,
    WatchdogUnavailable,
)
from fault.identity import EXECUTOR, Delivery, Presence, ProcessIdentity
from fault.injector import clock_offset
from fault.ssh_connection import RemoteHost, SshChannel
from tests.unit.fault.conftest import KEY, Channel, Host

# Higher than any pid.
ABSENT = ProcessIdentity(4_194_400, 1_000.0, EXECUTOR, "20261121T061500Z-3fa9c1", (), 55)


def kill(channel: SshChannel, victim: ProcessIdentity = ABSENT) -> Any:
    return channel.ask("signal", victim=victim, signum=signal.SIGKILL)


def test_connection_is_opened_once_with_the_configured_key_only(channel: SshChannel, host: Host) -> None:
    assert host.connected == []
    channel.ask("arm", victim=ABSENT)
    channel.ask("arm", victim=ABSENT)
    seconds = dict.fromkeys(("timeout", "banner_timeout", "auth_timeout", "channel_timeout"), 3.0)
    how = {"port": 2222, "username": "me", "pkey": KEY, "allow_agent": False, "look_for_keys": False}
    assert host.connected == [{"host": "there", **how, **seconds}]
    assert (host.keepalive_s, host.closed, len(host.agents)) == (5, 0, 1)
    for _ in range(2):
        channel.close()
        assert host.closed == 1
    channel.ask("arm", victim=ABSENT)
    assert len(host.connected) == len(host.agents) == 2
    plain = RemoteHost("there", "me", Path("key"), Path("known"))
    assert (plain.port, plain.python, plain.timeout_s) == (22, "python3", 10.0), "unsaid"


def test_agent_folder_exists_only_during_the_connection(channel: SshChannel, host: Host) -> None:
    channel.ask("clock")
    (folder,) = host.left
    assert (host.home / folder).stat().st_mode & 0o777 == 0o700
    channel.close()
    assert host.left == []


def test_next_agent_removes_folders_of_killed_agents_only(channel: SshChannel, host: Host, tmp_path: Path) -> None:
    channel.ask("clock")
    host.agents[0].kill()
    host.agents[0].wait()
    (dead,) = host.left
    (tmp_path / "faultline-agent-link").symlink_to(tmp_path.parent)
    (tmp_path / "other").mkdir()
    with pytest.raises(ConnectionLost):
        channel.ask("clock")
    with contextlib.closing(SshChannel(channel._host)) as second:
        second.ask("clock")
        living = set(host.left)
        assert dead not in living and len(living) == 3
        channel.ask("clock")
        assert living < set(host.left)
    assert (tmp_path / "faultline-agent-link").is_symlink() and tmp_path.parent.exists()


def test_host_without_python_fails_before_any_request(
    channel: SshChannel, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_false(made: Channel, command: str) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        made._agent = subprocess.Popen(["sh", "-c", "cat >/dev/null & exec >&-; exec 2>&-; wait"], **pipes)
        host.agents.append(made._agent)

    monkeypatch.setattr(Channel, "exec_command", run_false)
    with pytest.raises(RemoteError, match=r"probe.*reason"):
        channel.ask("probe", victim=ABSENT)
    assert host.closed >= 1


def test_dead_connection_is_reopened(channel: SshChannel, host: Host) -> None:
    channel.ask("arm", victim=ABSENT)
    host.alive = False
    with pytest.raises(ConnectionLost, match="not active"):
        channel.ask("probe", victim=ABSENT)
    assert len(host.connected) == 2 and host.closed == 2


@pytest.mark.parametrize(
    ("refused", "kind"),
    [
        (paramiko.BadHostKeyException("there", KEY, KEY), HostKeyRefused),
        (paramiko.AuthenticationException("no"), AuthenticationRefused),
        (paramiko.PasswordRequiredException("no"), AuthenticationRefused),
        (paramiko.SSHException("no"), HostUnreachable),
        (OSError("no"), HostUnreachable),
        (EOFError(), HostUnreachable),
        (ZeroDivisionError("no"), ZeroDivisionError),
    ],
)  # fmt: skip
def test_connection_errors_have_types(
    channel: SshChannel, host: Host, refused: Exception, kind: type[Exception]
) -> None:
    host.refuses = refused
    with pytest.raises(kind) as caught:
        kill(channel)
    assert type(caught.value) is kind
    assert host.closed == 1
    if isinstance(caught.value, RemoteError):
        assert (caught.value.host, caught.value.command) == ("there", "kill -s KILL 4194400")


@pytest.mark.parametrize(
    ("do", "fields", "command"),
    [
        ("find", {"victim": "executor"}, "find executor"), ("probe", {"victim": ABSENT}, "probe 4194400"),
        ("signal", {"victim": ABSENT, "signum": 19}, "kill -s STOP 4194400"), ("clock", {}, "read the clock"),
        ("act", {"step": "do", "kind": "partition"}, "do partition"), ("watch", {"kind": "delay"}, "watch delay"),
        ("watch", {"victim": ABSENT}, "watch 4194400"), ("busy", {}, "read CPU times"), ("record", {}, "record"),
    ],
)  # fmt: skip
def test_errors_name_the_request(
    channel: SshChannel, host: Host, do: str, fields: Mapping[str, Any], command: str
) -> None:
    host.refuses = OSError("no")
    with pytest.raises(HostUnreachable) as caught:
        channel.ask(do, **fields)
    assert caught.value.command == command


def test_lost_reply_leaves_signal_unknown_until_a_probe(channel: SshChannel, host: Host) -> None:
    for lost in (b"", b'{"n": 2', b'{"n": 0, "value": "sent"}\n', OSError("broke"), EOFError(), TimeoutError()):
        host.lost = [lost]
        assert kill(channel) == Delivery.UNKNOWN
        agents = len(host.agents)
        with pytest.raises(UnsettledSignal):
            kill(channel)
        assert len(host.agents) == agents, "nothing was asked"
        assert kill(channel, replace(ABSENT, pid=4_194_401)) == Delivery.GONE, "another victim"
        host.lost = [OSError("broke")]
        with pytest.raises(ConnectionLost):
            channel.ask("probe", victim=ABSENT)
        with pytest.raises(UnsettledSignal):
            kill(channel)
        assert channel.ask("probe", victim=ABSENT) == Presence.GONE
        assert kill(channel) == Delivery.GONE


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        ({"kind": "SignalRefused", "message": "pid: no"}, RemoteSignalRefused, "^there: .*pid: no"),
        ({"kind": "VictimRefused", "message": "pid: no"}, VictimRefused, "^pid: no$"),
        ({"kind": "WatchdogUnavailable", "message": "none"}, WatchdogUnavailable, "^there: none"),
        ({"kind": "ActionRefused", "message": "nft: no"}, ActionRefused, "^there: nft: no"),
        ({"kind": "KeyError", "message": "KeyError: 'x'"}, RemoteError, "kill -s KILL 4194400: KeyError"),
        ({"kind": "IdentityMismatch", "message": "", "pid": 7, "part": "role", "detail": "is none"}, IdentityMismatch,
         "^role: .*is none"),
    ],
)  # fmt: skip
def test_agent_errors_are_raised_as_errors_of_the_host(
    channel: SshChannel, host: Host, error: dict[str, Any], kind: type[Exception], words: str
) -> None:
    host.replies = [{"error": error}]
    with pytest.raises(kind, match=words) as caught:
        kill(channel)
    assert type(caught.value) is kind


def test_clock_offset_uses_the_shortest_round_trip(channel: SshChannel, host: Host) -> None:
    found = clock_offset(channel)
    assert abs(found.offset_s) <= found.round_trip_s / 2 + 0.001 and found.round_trip_s > 0
    clock_ns = time.time_ns() + 10**9
    host.replies = [{"value": clock_ns + 10**10}, {"value": clock_ns}, {"value": clock_ns - 10**10}]
    seen = clock_offset(channel, samples=3)
    assert min(abs(seen.offset_s - by) for by in (1, 11, -9)) < 4
    host.lost = [EOFError()]
    with pytest.raises(ConnectionLost, match="read the clock"):
        clock_offset(channel)
