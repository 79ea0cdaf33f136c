"""Host faults: partitions, full disks and CPU load, and their undo after any kill."""

from __future__ import annotations

import base64
import contextlib
import pickle
import random
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from fault.errors import ActionRefused, KernelUnsupported
from fault.ssh_connection import SshChannel
from faultline.installation.hosts.layout import disk_of
from faultline.installation.hosts.namespace_host import init_pid
from faultline.system.ssh_hosts import remote_hosts, ssh_hosts
from faultline.system.waiting import wait_until
from tests.support.machines import NEEDS_HOSTS, Machines
from tests.support.processes import words_of

pytestmark = NEEDS_HOSTS

SERVER = """
import socket, sys
with socket.create_server((sys.argv[1], 9000)) as server:
    print("up", flush=True)
    while True:
        connection, _ = server.accept()
        connection.close()
"""
REACH = "import socket, sys; socket.create_connection((sys.argv[1], 9000), 1).close()"


def act(
    machines: Machines,
    host: str,
    do: str,
    kind: str,
    *,
    name: str = "of_a_test_0",
    seconds: float = 0.0,
    **asked: object,
) -> object:
    """Send a request to the agent of a host over a new connection."""
    request: dict[str, Any] = {"kind": kind, "name": name, "asked": asked}
    with closing(SshChannel(remote_hosts(ssh_hosts(machines.settings))[host])) as there:
        return (
            there.ask("watch", seconds=seconds, **request)
            if do == "undo_later"
            else there.ask("act", step=do, **request)
        )


def reaches(machines: Machines, host: str, other: str) -> bool:
    """Return whether one host can connect to another."""
    address = next(one.address for one in machines.hosts if one.name == other)
    process = machines.run(host, sys.executable, "-c", REACH, address)
    process.communicate(timeout=120)
    return process.returncode == 0


@pytest.fixture(scope="module")
def listening(machines: Machines) -> None:
    """Listeners on each host."""
    for host in machines.hosts:
        process = machines.run(host.name, sys.executable, "-c", SERVER, host.address)
        assert process.stdout is not None and process.stdout.readline() == b"up\n"


@pytest.mark.usefixtures("listening")
def test_a_partition_passes_only_its_undo(machines: Machines) -> None:
    address = {one.name: one.address for one in machines.hosts}
    peers = [address["kafka"], address["worker-1"], machines.settings.placement.conductor]
    assert reaches(machines, "worker-2", "kafka") and reaches(machines, "kafka", "worker-2")
    asked = {"peers": peers, "way": "both"}
    act(machines, "worker-2", "check", "partition", **asked)
    assert act(machines, "worker-2", "is_active", "partition", **asked) is False
    for _ in range(2):
        act(machines, "worker-2", "do", "partition", **asked)
    assert act(machines, "worker-2", "is_active", "partition", **asked) is True
    assert not reaches(machines, "worker-2", "kafka") and not reaches(machines, "kafka", "worker-2")
    assert reaches(machines, "worker-1", "kafka"), "others continue"
    for _ in range(2):
        act(machines, "worker-2", "undo", "partition", **asked)
    assert act(machines, "worker-2", "is_active", "partition", **asked) is False
    assert reaches(machines, "worker-2", "kafka") and reaches(machines, "kafka", "worker-2")


@pytest.mark.usefixtures("listening")
def test_a_partition_from_one_host_leaves_the_others(machines: Machines) -> None:
    kafka = next(one.address for one in machines.hosts if one.name == "kafka")
    act(machines, "worker-1", "do", "partition", peers=[kafka], way="both")
    try:
        assert not reaches(machines, "worker-1", "kafka")
        assert reaches(machines, "worker-1", "worker-2") and reaches(machines, "worker-2", "worker-1")
    finally:
        act(machines, "worker-1", "undo", "partition", peers=[kafka], way="both")


@pytest.mark.usefixtures("listening")
def test_packets_are_lost_until_it_is_undone(machines: Machines) -> None:
    kafka = next(one.address for one in machines.hosts if one.name == "kafka")
    asked = {"peers": [kafka], "percent": 90.0, "way": "both"}
    act(machines, "worker-1", "check", "loss", **asked)
    act(machines, "worker-1", "do", "loss", **asked)
    try:
        # A connection is retried once within a second; at 90 % loss it rarely succeeds.
        assert not all(reaches(machines, "worker-1", "kafka") for _ in range(3))
        assert reaches(machines, "worker-1", "worker-2")
    finally:
        act(machines, "worker-1", "undo", "loss", **asked)
    assert all(reaches(machines, "worker-1", "kafka") for _ in range(3))


def test_a_delay_lasts_until_its_undo_or_is_unsupported(machines: Machines) -> None:
    asked = {"peers": [machines.settings.placement.conductor], "delay_ms": 10.0, "jitter_ms": 0.0}
    try:
        act(machines, "worker-1", "check", "delay", **asked)
    except KernelUnsupported as lack:
        assert "netem: " in str(lack)
        return
    act(machines, "worker-1", "do", "delay", **asked)
    assert act(machines, "worker-1", "is_active", "delay", **asked) is True
    act(machines, "worker-1", "undo", "delay", **asked)
    assert act(machines, "worker-1", "is_active", "delay", **asked) is False


@pytest.mark.usefixtures("listening")
def test_the_watchdog_ends_a_partition(machines: Machines) -> None:
    kafka = next(one.address for one in machines.hosts if one.name == "kafka")
    asked = {"peers": [kafka], "way": "in"}
    began = time.monotonic()
    act(machines, "worker-1", "undo_later", "partition", seconds=4.0, **asked)
    act(machines, "worker-1", "do", "partition", **asked)
    assert not reaches(machines, "worker-1", "kafka")
    wait_until(
        lambda: not act(machines, "worker-1", "is_active", "partition", **asked),
        timeout_s=120,
        every_s=0.2,
        what="its end",
    )
    assert time.monotonic() - began > 3.5 and reaches(machines, "worker-1", "kafka")


def test_a_full_disk_has_no_free_byte_until_its_undo(machines: Machines) -> None:
    for host in machines.hosts[:2]:
        disk = disk_of(machines.settings, host)
        act(machines, host.name, "do", "disk_full", folder=str(disk))
        with pytest.raises(OSError, match="No space left"):
            (disk / "one").write_bytes(b"1" * 4096)
        assert act(machines, host.name, "is_active", "disk_full", folder=str(disk)) is True
        act(machines, host.name, "undo", "disk_full", folder=str(disk))
        (disk / "one").write_bytes(b"1" * 4096)
        (disk / "one").unlink()


def test_a_bandwidth_limit_slows_a_transfer(machines: Machines) -> None:
    conductor = machines.settings.placement.conductor
    asked = {"peers": [conductor], "mbit_s": 1.0}
    act(machines, "kafka", "check", "bandwidth", **asked)
    with closing(SshChannel(remote_hosts(ssh_hosts(machines.settings))["kafka"])) as asking:
        folder = asking.ask("record", step="begin", rules=[], child_roles={}, reread_s=0.0, max_s=60.0)
        journal = Path(f"/proc/{init_pid(machines.settings, 'kafka')}/root{folder}/journal.jsonl")
        with journal.open("a") as file:
            file.write("x" * 200_000)

        def seconds() -> float:
            began = time.monotonic()
            asking.ask("record", step="part", folder=folder, offset=0, size=200_000)
            return time.monotonic() - began

        act(machines, "kafka", "do", "bandwidth", **asked)
        try:
            # 200 kB in base64 are 2.1 Mbit.
            assert seconds() > 1.5
            with pytest.raises(ActionRefused, match="^10.*: eth0: .*tbf"):
                act(machines, "kafka", "check", "bandwidth", **asked)
        finally:
            act(machines, "kafka", "undo", "bandwidth", **asked)
        asking.ask("record", step="drop", folder=folder)


def test_cpu_load_lasts_until_its_undo(machines: Machines) -> None:
    def neighbours() -> list[psutil.Process]:
        return [one for one in psutil.process_iter() if "faultline-neighbour=of_a_test_0" in words_of(one.pid)]

    act(machines, "worker-1", "do", "cpu_pressure", cores=2)
    act(machines, "worker-1", "do", "cpu_pressure", cores=2)
    assert len(neighbours()) == 2, "what is done is not done again"
    act(machines, "worker-1", "undo", "cpu_pressure", cores=2)
    wait_until(lambda: not neighbours(), timeout_s=120, what="their end")
    act(machines, "worker-2", "do", "memory_pressure", memory_mb=64)
    try:
        (one,) = wait_until(neighbours, timeout_s=120, what="it")
        wait_until(lambda: one.memory_info().rss > 64 * 2**20, timeout_s=120, what="its memory")
    finally:
        act(machines, "worker-2", "undo", "memory_pressure", memory_mb=64)
    wait_until(lambda: not neighbours(), timeout_s=120, what="its end")


@pytest.mark.parametrize(
    ("kind", "name", "asked", "message"),
    [
        ("partition", "x", {"peers": ["10.0.0.1; reboot"]}, "peer: "),
        ("bandwidth", "x", {"peers": ["nobody"], "mbit_s": 1}, "peer: "),
        ("disk_full", "x", {"folder": "/no/such"}, "disk_full: "),
        ("disk_full", "x", {"folder": "/etc"}, "disk_full: "),
        ("dance", "x", {}, "dance: "),
        ("partition", "x y", {"peers": []}, "partition: "),
    ],
)
def test_an_invalid_host_fault_is_refused(
    machines: Machines, kind: str, name: str, asked: dict[str, object], message: str
) -> None:
    with pytest.raises(ActionRefused, match=message) as caught:
        act(machines, "worker-1", "check", kind, name=name, **asked)
    assert "\n" not in str(caught.value)


# Injects like the fault scheduler: starts a watchdog, then the fault.
CONDUCTOR = """
import base64, pickle, sys, time
from fault.ssh_connection import SshChannel
host, request = pickle.loads(base64.b64decode(sys.argv[1]))
there = SshChannel(host)
there.ask("watch", seconds=2.0, **request)
print("watched", flush=True)
there.ask("act", step="do", **request)
print("done", flush=True)
time.sleep(900)
"""
DOOMED = ("conductor", "agent", "sshd")


def kill_one(machines: Machines, doomed: str, host: str, conductor: subprocess.Popen[bytes]) -> None:
    if doomed == "conductor":
        conductor.kill()
        return
    agent = machines.agent_on(host)
    if agent is None:
        return
    sessions = [one for one in agent.parents() if one.name().startswith("sshd")]
    # The last one is the server itself.
    for one in [agent] if doomed == "agent" else sessions[:-1]:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_each_host_fault_is_undone_after_a_random_kill(machines: Machines, share: int) -> None:
    """Kill scheduler, agent or sshd session at random times around a host fault."""
    chance, hosts = random.Random(28), remote_hosts(ssh_hosts(machines.settings))
    disk = {one.name: disk_of(machines.settings, one) for one in machines.hosts}
    address = {one.name: one.address for one in machines.hosts}
    killed: Counter[str] = Counter()
    done: list[tuple[str, str, str, dict[str, object]]] = []
    for number in range(60 if share == 1 else 6):
        host, doomed = chance.choice(("worker-1", "worker-2")), DOOMED[number % len(DOOMED)]
        kinds: dict[str, dict[str, object]] = {
            "partition": {"peers": [address["kafka"]], "way": "both"}, "disk_full": {"folder": str(disk[host])},
            "bandwidth": {"peers": [address["kafka"]], "mbit_s": 1.0}, "cpu_pressure": {"cores": 1},
        }  # fmt: skip
        kind = chance.choice(sorted(kinds))
        name, asked = f"round_{number}", kinds[kind]
        done.append((host, kind, name, asked))
        request = (hosts[host], {"kind": kind, "name": name, "asked": asked})
        coded = base64.b64encode(pickle.dumps(request)).decode()
        with subprocess.Popen(
            [sys.executable, "-c", CONDUCTOR, coded], env=machines.environment(), stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as conductor:  # fmt: skip
            try:
                assert conductor.stdout is not None and conductor.stdout.readline() == b"watched\n", kind
                time.sleep(chance.uniform(0.0, 0.5))
                kill_one(machines, doomed, host, conductor)
                killed[doomed] += 1
                wait_until(
                    lambda kind=kind, host=host, name=name, asked=asked: not act(
                        machines, host, "is_active", kind, name=name, **asked
                    ),
                    timeout_s=120, every_s=0.3, what=f"the end of {kind} on {host}, its {doomed} killed",
                )  # fmt: skip
            finally:
                conductor.kill()
    assert set(killed) == set(DOOMED)
    assert not [one for one in done if act(machines, one[0], "is_active", one[1], name=one[2], **one[3])], "nor later"
