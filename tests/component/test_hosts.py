"""Namespace hosts: creation, processes, SSH access and removal."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path

import psutil
import pytest

from fault.errors import ConnectionLost, HostUnreachable, VictimRefused
from fault.identity import EXECUTOR, WORKER, Delivery, Presence, Tokens
from fault.injector import FaultOutcome, Injector, settle
from fault.process_sampler import RoleRule
from fault.ssh_connection import SshChannel
from faultline.installation.hosts.layout import choose_hosts, disk_of
from faultline.installation.hosts.namespace_host import init_pid
from faultline.system.errors import ConfigError
from faultline.system.process_tags import instance_option, run_option
from faultline.system.settings import ROOT, Settings
from faultline.system.ssh_hosts import remote_hosts, ssh_hosts
from faultline.system.waiting import wait_until
from tests.support.machines import INSTANCE, NEEDS_HOSTS, Machines

RUN = "20261121T061500Z-3fa9c1"
SPINNER = "print('up', flush=True)\nwhile True: pass"
# Host name, and the lowest pid.
LOOK = """
import os, socket
print(socket.gethostname(), min(int(name) for name in os.listdir("/proc") if name.isdigit()))
"""

pytestmark = NEEDS_HOSTS


def test_each_host_has_its_own_address_processes_and_name(machines: Machines) -> None:
    for host in machines.hosts:
        process = machines.run(host.name, sys.executable, "-c", LOOK)
        output, _ = process.communicate(timeout=120)
        assert output.decode().split() == [host.name, "1"]
        with socket.create_connection((host.address, 22), 5) as connection:
            assert connection.recv(4) == b"SSH-"
    pids = {init_pid(machines.settings, host.name) for host in machines.hosts}
    spaces = {os.readlink(f"/proc/{pid}/ns/net") for pid in pids}
    assert len(spaces) == 3 and os.readlink("/proc/self/ns/net") not in spaces


def test_a_host_has_its_own_disk(machines: Machines) -> None:
    for host in machines.hosts:
        disk = disk_of(machines.settings, host)
        assert os.path.ismount(disk) and os.statvfs(disk).f_blocks * os.statvfs(disk).f_frsize < 5 * 2**30


def test_a_victim_is_killed_by_its_pid_on_the_host(machines: Machines) -> None:
    process = machines.pretend("worker-1", run_option(RUN), EXECUTOR.main, "--executor-id", "3")
    addresses = remote_hosts(ssh_hosts(machines.settings))
    channels = {name: SshChannel(addresses[name]) for name in ("worker-1", "worker-2")}
    with closing(Injector(channels)) as near:
        (victim,) = near.find("executor", Tokens(RUN))
        assert victim.number == 3 and victim.pid not in {one.pid for one in children_of(process)}
        assert victim.host == "worker-1"
        assert near.signal(victim, signal.SIGKILL) is Delivery.SENT
        assert settle(near, victim, Presence.GONE, Delivery.SENT).outcome is FaultOutcome.EFFECTIVE
        assert process.wait(120) != 0
        offset = near.clock_offsets()["worker-1"]
        assert abs(offset.offset_s) <= offset.round_trip_s / 2 + 0.001


def children_of(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(process.pid).children(recursive=True)
    return []


def test_a_host_records_its_processes_and_its_total_usage(machines: Machines) -> None:
    machines.pretend("worker-1", instance_option(INSTANCE), WORKER.main, program=SPINNER)
    rules = [asdict(RoleRule("services", WORKER.main, instance_option(INSTANCE)))]
    options = {"rules": rules, "child_roles": {}, "reread_s": 0.0, "max_s": 60.0}
    addresses = remote_hosts(ssh_hosts(machines.settings))
    used = {}
    for name in ("worker-1", "worker-2"):
        with closing(SshChannel(addresses[name])) as asked:
            folder = asked.ask("record", step="begin", **options)
            time.sleep(3.0)
            assert asked.ask("record", step="end", folder=folder)
            text = base64.b64decode(asked.ask("record", step="part", folder=folder, offset=0, size=10**6))
            asked.ask("record", step="drop", folder=folder)
            with pytest.raises(VictimRefused, match="record: "):
                asked.ask("record", step="end", folder=folder)
        lines = [json.loads(line) for line in text.splitlines()]
        used[name] = [line["cpu_s"] for line in lines if line["kind"] == "proc"]
        group = [line for line in lines if line["kind"] == "group"]
        assert group[0]["path"].endswith(f"-{name}"), "the host has a group of its own"
        if used[name]:
            grown = used[name][-1] - used[name][0]
            # The agent runs on the host, too; both samples are of different instants.
            assert grown <= group[-1]["cpu_s"] - group[0]["cpu_s"] + 0.1 and grown > 0.1
    assert used["worker-1"] and not used["worker-2"]


def test_the_key_opens_the_agent_and_nothing_else(machines: Machines) -> None:
    host = ssh_hosts(machines.settings)["kafka"]
    command = ["ssh", "-i", host["key_file"], "-o", f"UserKnownHostsFile={host['known_hosts']}", "-o", "BatchMode=yes"]
    done = subprocess.run(
        [*command, f"{host['user']}@{host['host']}", "touch /tmp/faultline-was-here"], input=b"", capture_output=True
    )
    assert done.returncode != 0 and not Path("/tmp/faultline-was-here").exists()


def test_an_agent_starts_without_shell_profiles(machines: Machines) -> None:
    """A shell profile may hold a lock, which a killed agent would leave."""
    with closing(SshChannel(remote_hosts(ssh_hosts(machines.settings))["kafka"])) as asked:
        asked.ask("clock")
        agent = machines.agent_on("kafka")
        assert agent is not None
        own = {"USER", "LOGNAME", "HOME", "PATH", "SHELL", "MAIL", "SSH_CLIENT", "SSH_CONNECTION"}
        assert set(agent.environ()) - own <= {"SSH_ORIGINAL_COMMAND", "SHLVL", "PWD", "_", "LC_CTYPE"}


@pytest.mark.parametrize("count", [1, 2, 9, -1])
def test_an_impossible_number_of_hosts_is_refused(tmp_path: Path, count: int) -> None:
    settings = Settings(ROOT, tmp_path, tmp_path / "results")
    with pytest.raises(ConfigError, match=r"^--hosts: .*3 to 8"):
        choose_hosts(settings, count)
    assert not choose_hosts(settings, 0).is_spread


# Last, because the host is not created again.
def test_a_lost_host_is_named_and_its_processes_end(machines: Machines) -> None:
    process = machines.pretend("worker-2", "of-the-lost-host")
    address = remote_hosts(ssh_hosts(machines.settings))["worker-2"]
    with closing(SshChannel(replace(address, timeout_s=3.0))) as asked:
        assert asked.ask("clock") > 0
        pid = init_pid(machines.settings, "worker-2")
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert process.wait(120) != 0
        with pytest.raises((ConnectionLost, HostUnreachable), match="read the clock"):
            asked.ask("clock")
        with pytest.raises(HostUnreachable, match=address.host):
            asked.ask("clock")
    wait_until(lambda: init_pid(machines.settings, "worker-2") is None, timeout_s=120, what="its end")
    assert init_pid(machines.settings, "worker-1") is not None, "the others continue"


def test_a_host_ends_with_its_init(machines: Machines) -> None:
    keep = ["faultline.installation.hosts.namespace_host", "keep", "kafka"]
    keeper = next(one for one in machines.started if list(one.args)[-3:] == keep)  # type: ignore[arg-type]
    pid = init_pid(machines.settings, "kafka")
    assert pid is not None
    keeper.kill()
    wait_until(lambda: not psutil.pid_exists(pid), timeout_s=120, what="its end")
