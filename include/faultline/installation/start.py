"""Programs that start services; each is replaced by the given command.

    python -P -m faultline.installation.start held FILE             after the service's restart delay
    python -P -m faultline.installation.start session COMMAND...    in its own session
    python -P -m faultline.installation.start scheduler COMMAND...  after ending tasks of a killed scheduler
    python -P -m faultline.installation.start spark-session         spark-submit of the persistent Spark session
    python -P -m faultline.installation.start host NAME FOLDER      init process of a namespace host

Imports are local to each program: the time between a kill and the restart of a service is measured.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    import psutil

    from faultline.system.settings import Settings

# ---- Restart delay: supervisord restarts at once, but a fault may require a later restart ----

# Before the injection the fault scheduler writes the instant until which the service stays down. The delay expires by
# itself, so it needs no undo. Its limit is the largest `restart_delay_s` plus a margin.
MAX_DELAY_S = 65.0
# The monotonic clock restarts with each boot, so a delay written before a reboot is invalid.
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_POLL_S = 0.02


def write_delay(path: Path, until_mono_ns: int) -> None:
    """Keep the service of `path` down until this instant of the host's monotonic clock."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps({"until_mono_ns": until_mono_ns, "boot": _boot()}), encoding="utf-8")
    temporary.rename(path)


def await_delay(path: Path, *, longest_s: float = MAX_DELAY_S) -> float:
    """Wait for the end of the service's restart delay; return the seconds waited."""
    began = time.monotonic_ns()
    while (until := _delay_end_ns(path)) is not None and time.monotonic_ns() < until:
        if time.monotonic_ns() - began > longest_s * 1e9:
            break
        time.sleep(_POLL_S)
    return (time.monotonic_ns() - began) / 1e9


def _delay_end_ns(path: Path) -> int | None:
    try:
        delay = json.loads(path.read_text(encoding="utf-8"))
        return int(delay["until_mono_ns"]) if delay["boot"] == _boot() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _boot() -> str:
    try:
        return _BOOT_ID.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def delay_restart(file: str) -> NoReturn:
    """Start the service of a JSON file, {"service", "command", "hold", "journal"}, after its restart delay."""
    from faultline.system.errors import InfrastructureError
    from faultline.system.journal import Journal

    service: dict[str, Any] = json.loads(Path(file).read_text(encoding="utf-8"))
    waited_s = await_delay(Path(service["hold"]))
    # On a full disk the line is lost, but the service must start: supervisord gives up after some failures.
    with contextlib.suppress(InfrastructureError), Journal(Path(service["journal"])) as journal:
        journal.write("started", service=service["service"], pid=os.getpid(), waited_s=round(waited_s, 3))
    os.execvp(service["command"][0], service["command"])


# ---- Own session, which the kernel's scheduler weighs separately from measured sessions ----


def session(*command: str) -> NoReturn:
    """Start a background service in its own session.

    supervisord makes each program the leader of a process group, and a leader may not create a session; so the program
    first joins its parent's group. As a session leader it leads a group of its former number again, by which
    supervisord ends it.
    """
    # In a container the program may lead a session already, or have no visible parent.
    with contextlib.suppress(OSError):
        if os.getsid(0) != os.getpid():
            os.setpgid(0, os.getpgid(os.getppid()))
            os.setsid()
    os.execvp(command[0], command)


# ---- Airflow's scheduler ----

# Process title of LocalExecutor workers and their task processes.
TITLE = "airflow worker -- "


def scheduler(*command: str) -> NoReturn:
    """Start the scheduler after ending the task processes of a killed one.

    LocalExecutor workers hold both ends of their queue and never notice a dead scheduler: an idle one would wait
    forever, a busy one would continue a task that the new scheduler restarts.
    """
    from faultline.system.process_ledger import end_processes
    from faultline.system.settings import load_settings

    if ended := end_processes(orphaned_tasks(load_settings(), list(command))):
        print(f"scheduler: ended {len(ended)} processes of the previous one", flush=True)
    os.execvp(command[0], command)


def orphaned_tasks(settings: Settings, command: list[str]) -> list[psutil.Process]:
    """Return the task processes of this installation, with their descendants, if no scheduler runs.

    A newly forked worker still shows the scheduler's `command`. Detached processes are not among the descendants; they
    belong to an attempt, which the next measurement closes.
    """
    import psutil

    from faultline.installation.supervision import marked_processes

    found: dict[int, psutil.Process] = {}
    for process in marked_processes(settings):
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            if words and (words[0].startswith(TITLE) or words[-len(command) :] == command):
                for one in (process, *process.children(recursive=True)):
                    found.setdefault(one.pid, one)
    return list(found.values())


# ---- The persistent Spark session ----


def spark_session() -> NoReturn:
    """Start `spark_jobs/job_server.py`, which runs harvest and aggregate."""
    from faultline.engines.spark.settings import LOCAL_MASTER, batch_settings, program, spark_environment
    from faultline.installation.cds_archive import find_archive
    from faultline.installation.java import find_java
    from faultline.installation.spark import spark_submit
    from faultline.system.secrets import read_secrets
    from faultline.system.settings import load_settings

    settings = load_settings()
    # Fail early: the session must use the same secret as Master and workers.
    read_secrets(settings.secrets)
    conf = batch_settings(settings, archive=find_archive(settings))
    socket = ("--socket", str(settings.session_socket))
    command = spark_submit(
        settings, conf, program(settings, "job_server"), *socket, master=LOCAL_MASTER, name="session"
    )
    environment = {**os.environ, **spark_environment(settings, find_java(settings.home / "java.json").home)}
    os.execve(command[0], command, environment)


# ---- Init process of a namespace host: the host ends with it ----


def host(name: str, folder: str) -> NoReturn:
    """Run as init of a namespace host: reap orphaned processes until terminated; the host ends with it.

    Names are resolved from `folder` only: without it a broker would wait for an unreachable name server.
    """
    import signal
    import socket
    import subprocess

    socket.sethostname(name)
    for file in ("hosts", "resolv.conf"):
        # These mounts are visible in the host's own mount namespace only.
        subprocess.run(["mount", "--bind", str(Path(folder) / file), f"/etc/{file}"], check=True)
    # An init process receives only signals that it handles.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))
    while True:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, 0)
            continue
        time.sleep(1.0)


if __name__ == "__main__":
    starts: dict[str, Callable[..., NoReturn]] = {
        "held": delay_restart, "session": session, "scheduler": scheduler, "spark-session": spark_session, "host": host,
    }  # fmt: skip
    starts[sys.argv[1]](*sys.argv[2:])
