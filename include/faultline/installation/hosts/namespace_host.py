"""Namespace host: a host emulated by Linux namespaces, with its own disk, processes and network.

python -P -m faultline.installation.hosts.namespace_host keep NAME              run the host until this process ends
python -P -m faultline.installation.hosts.namespace_host enter NAME COMMAND...  run a command on the host
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

import psutil

from faultline.installation.hosts.layout import (
    checkpoint_disk,
    disk_of,
    find_program,
    host_folder,
    put_in_group,
    remove_group,
)
from faultline.installation.hosts.ssh import prepare_ssh
from faultline.system.endpoints import Host, Placement
from faultline.system.errors import FaultlineError, InfrastructureError
from faultline.system.files import read_document, write_json
from faultline.system.process_ledger import live_process, start_identity
from faultline.system.settings import Settings, load_settings
from faultline.system.waiting import wait_until

# File that identifies the host's init process.
STATE_FILE = "there.json"
DISK, CHECKPOINTS = "disk.ext4", "checkpoints.ext4"
# Option of prctl(2): send a signal when the parent dies.
_PR_SET_PDEATHSIG = 1


def run_host(settings: Settings, host: Host) -> int:
    """Create the host, wait for the end of its init process and return its status."""
    folder, disk = host_folder(settings, host.name), disk_of(settings, host)
    (folder / STATE_FILE).unlink(missing_ok=True)
    mount(folder / DISK, disk)
    command = [
        str(find_program("unshare")),
        "--net",
        "--pid",
        "--mount",
        "--uts",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ]
    init = [sys.executable, "-P", "-m", "faultline.installation.start", "host", host.name, str(settings.hosts)]
    # The host ends with this process, even if that is killed: no other process could connect it to the network again.
    unshare = subprocess.Popen([*command, *init], preexec_fn=_die_with_parent)

    def stop(signum: int, frame: FrameType | None) -> None:
        unshare.kill()  # unshare handles no other signal; --kill-child ends the host

    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, stop)
    try:
        pid = _await_init(unshare)
        put_in_group(settings.placement, host, pid)
        connect_host(settings.placement, host, pid)
        ticks, boot = start_identity(pid)
        write_json(folder / STATE_FILE, {"pid": pid, "start_ticks": ticks, "boot": boot})
        print(f"{host.name}: at {host.address}, process {pid}", flush=True)
        return unshare.wait()
    finally:
        (folder / STATE_FILE).unlink(missing_ok=True)
        unshare.kill()
        unshare.wait()
        remove_link(settings.placement, host)
        remove_group(settings.placement, host)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _await_init(unshare: subprocess.Popen[bytes]) -> int:
    """Return the pid, on this machine, of the host's init process."""

    def child() -> int | None:
        with contextlib.suppress(psutil.Error):
            children = psutil.Process(unshare.pid).children()
            return next((process.pid for process in children if _has_own_network(process.pid)), None)
        return None

    return wait_until(child, timeout_s=10, what="host: start of its init process", alive=lambda: _exit_text(unshare))


def _exit_text(unshare: subprocess.Popen[bytes]) -> str | None:
    return None if unshare.poll() is None else f"unshare ended with status {unshare.returncode}"


def _has_own_network(pid: int) -> bool:
    """Return whether the process is in its own network namespace."""
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net")
    return False


def prepare_hosts(settings: Settings) -> None:
    """Prepare what all hosts share: network, keys and mounted disks, including that of checkpoints."""
    prepare_ssh(settings)
    write_name_files(settings)
    make_bridge(settings.placement)
    mount(settings.hosts / CHECKPOINTS, checkpoint_disk(settings))
    for host in settings.placement.hosts:
        mount(host_folder(settings, host.name) / DISK, disk_of(settings, host))


def clear_hosts(settings: Settings) -> None:
    """Remove networks and mounts, even those left by a crash. Does nothing if there are none."""
    if settings.placement.is_spread:
        unmount(checkpoint_disk(settings))
    for host in settings.placement.hosts:
        unmount(disk_of(settings, host))
        remove_group(settings.placement, host)
    remove_bridge(settings.placement)


# ---- Entering a host ----

START_TIMEOUT_S = 60.0


def init_pid(settings: Settings, name: str) -> int | None:
    """Return the pid, on this machine, of the host's init process; None while the host is down."""
    try:
        state = read_document(host_folder(settings, name) / STATE_FILE)
    except FaultlineError:
        return None
    process = live_process(state["pid"], 0.0, state["start_ticks"], state["boot"])
    return None if process is None else process.pid


def enter_command(name: str, command: Sequence[str]) -> list[str]:
    """Return the local command that runs `command` on the host."""
    return [sys.executable, "-P", "-m", "faultline.installation.hosts.namespace_host", "enter", name, *command]


def enter(settings: Settings, host: Host, command: Sequence[str]) -> NoReturn:
    """Exec the command on the host, in the current folder."""
    pid = wait_until(
        lambda: init_pid(settings, host.name), timeout_s=START_TIMEOUT_S, what=f"{host.name}: start of the host"
    )
    put_in_group(settings.placement, host, os.getpid())
    spaces = ["--net", "--pid", "--mount", "--uts", f"--wd={Path.cwd()}"]
    words = [str(find_program("nsenter")), "--target", str(pid), *spaces, "--", *command]
    os.execv(words[0], words)


def main() -> None:
    do, name, *command = sys.argv[1:]
    settings = load_settings()
    host = next((one for one in settings.placement.hosts if one.name == name), None)
    if host is None:
        raise InfrastructureError(f"{name}: unknown host; expected one of {settings.home}/hosts.json")
    if do == "enter":
        enter(settings, host, command)
    sys.exit(run_host(settings, host))


# ---- Name resolution on the hosts ----

CONDUCTOR = "conductor"


def write_name_files(settings: Settings) -> None:
    """Write the hosts' `/etc/hosts` and `/etc/resolv.conf`.

    There is no name server: a query to an unreachable one takes seconds.
    """
    placement = settings.placement
    lines = ["127.0.0.1 localhost", f"{placement.conductor} {CONDUCTOR}"]
    lines += [f"{host.address} {host.name}" for host in placement.hosts]
    (settings.hosts / "hosts").write_text("".join(f"{line}\n" for line in lines))
    (settings.hosts / "resolv.conf").write_text("options timeout:1 attempts:1\n")


# ---- The disk of a host: a bounded file system in an image file ----

SIZE_MB = 4096


def mount(image: Path, folder: Path) -> None:
    """Mount the disk at `folder`; keep the content of an existing image. Raises InfrastructureError."""
    folder.mkdir(parents=True, exist_ok=True)
    if is_mounted(folder):
        return
    if not image.exists():
        image.parent.mkdir(parents=True, exist_ok=True)
        unfinished = image.with_suffix(".new")
        unfinished.unlink(missing_ok=True)
        # -m 0: no blocks reserved for root, since all processes that use the disk run as root.
        _run([str(find_program("mkfs.ext4")), "-q", "-m", "0", str(unfinished), f"{SIZE_MB}M"])
        unfinished.rename(image)
    _run([str(find_program("mount")), "-o", "loop", str(image), str(folder)])


def unmount(folder: Path) -> None:
    """Unmount the disk lazily; do nothing if it is not mounted."""
    if is_mounted(folder):
        _run([str(find_program("umount")), "--lazy", str(folder)])


def is_mounted(folder: Path) -> bool:
    """Return whether a disk is mounted there."""
    return os.path.ismount(folder)


# ---- The hosts' network: a bridge on this machine, and a veth pair per host ----


_LINKS = Path("/sys/class/net")


def make_bridge(placement: Placement) -> None:
    """Create the bridge if missing, with this machine's address. Raises InfrastructureError."""
    if not _has_link(placement.bridge):
        _ip("link", "add", placement.bridge, "type", "bridge")
        _ip("address", "add", f"{placement.conductor}/24", "dev", placement.bridge)
    _ip("link", "set", placement.bridge, "up")


def remove_bridge(placement: Placement) -> None:
    """Remove the bridge and the links to hosts; do nothing if missing."""
    for host in placement.hosts:
        remove_link(placement, host)
    if placement.bridge:
        _delete(placement.bridge)


def connect_host(placement: Placement, host: Host, pid: int) -> None:
    """Connect the host whose init process has this pid. Raises InfrastructureError."""
    remove_link(placement, host)
    near, far = link_of(placement, host), "eth0"
    _ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", str(pid))
    _ip("link", "set", near, "master", placement.bridge, "up")
    inside = [str(find_program("nsenter")), "--target", str(pid), "--net", str(find_program("ip"))]
    for words in (
        ("link", "set", "lo", "up"),
        ("address", "add", f"{host.address}/24", "dev", far),
        ("link", "set", far, "up"),
        ("route", "add", "default", "via", placement.conductor),
    ):
        _run([*inside, *words])


def remove_link(placement: Placement, host: Host) -> None:
    """Disconnect a host; do nothing if it is not connected."""
    _delete(link_of(placement, host))


def link_of(placement: Placement, host: Host) -> str:
    """Return the name of this machine's interface to a host: faultl-XXXXXXXX becomes flXXXXXXXX-N."""
    return f"fl{placement.bridge.removeprefix('faultl-')}-{host.address.rpartition('.')[2]}"


def _delete(link: str) -> None:
    if not _has_link(link):
        return
    try:
        _ip("link", "delete", link)
    except InfrastructureError:
        # The kernel removes it with the namespace of its peer.
        if _has_link(link):
            raise


def _has_link(link: str) -> bool:
    return (_LINKS / link).exists()


def _ip(*words: str) -> None:
    _run([str(find_program("ip")), *words])


def _run(command: list[str]) -> None:
    """Run a command. Raises InfrastructureError with its output if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InfrastructureError(f"hosts: {' '.join(command)}: {done.stderr.strip() or 'failed'}")


if __name__ == "__main__":
    try:
        main()
    except FaultlineError as error:
        sys.exit(str(error))
