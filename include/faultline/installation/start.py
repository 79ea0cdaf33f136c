"""Programs that services start with. A command given to one takes this process's place.

    python -P -m faultline.installation.start held FILE             after the hold that a fault laid on the service
    python -P -m faultline.installation.start session COMMAND...    in a session of its own
    python -P -m faultline.installation.start scheduler COMMAND...  once the tasks of a killed scheduler are ended
    python -P -m faultline.installation.start spark-session         spark-submit of the Spark that stays
    python -P -m faultline.installation.start host NAME FOLDER      the first process of a host; runs until that ends

What only one of them needs is imported there: between a kill and the next start of a service, time is measured.
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

# ---- After a hold: supervisord restarts what died at once, and a fault may want that later ----

# Before the act the conductor writes a hold: the instant until which the service stays down. It ends by its own clock,
# whoever dies meanwhile, so a hold needs no healing. No service is held longer than this, whatever a hold says: the
# largest `restart_delay_s`, and a little.
MAX_DELAY_S = 65.0
# The monotonic clock begins again with each boot, and a hold from before says nothing.
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_POLL_S = 0.02


def write_delay(path: Path, until_mono_ns: int) -> None:
    """Keeps the service of `path` down until this instant of the host's monotonic clock."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps({"until_mono_ns": until_mono_ns, "boot": _boot()}), encoding="utf-8")
    temporary.rename(path)


def await_delay(path: Path, *, longest_s: float = MAX_DELAY_S) -> float:
    """Returns once no hold is left on the service, with the seconds that it took."""
    began = time.monotonic_ns()
    while (until := _delay_end_ns(path)) is not None and time.monotonic_ns() < until:
        if time.monotonic_ns() - began > longest_s * 1e9:
            break
        time.sleep(_POLL_S)
    return (time.monotonic_ns() - began) / 1e9


def _delay_end_ns(path: Path) -> int | None:
    try:
        hold = json.loads(path.read_text(encoding="utf-8"))
        return int(hold["until_mono_ns"]) if hold["boot"] == _boot() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _boot() -> str:
    try:
        return _BOOT_ID.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def delay_restart(file: str) -> NoReturn:
    """Starts the service of a JSON file: {"service", "command", "hold", "journal"}."""
    from faultline.system.errors import InfrastructureError
    from faultline.system.journal import Journal

    wanted: dict[str, Any] = json.loads(Path(file).read_text(encoding="utf-8"))
    waited_s = await_delay(Path(wanted["hold"]))
    # On a full disk the line is lost. A service that did not start for it would be given up after some tries, for good.
    with contextlib.suppress(InfrastructureError), Journal(Path(wanted["journal"])) as journal:
        journal.write("started", service=wanted["service"], pid=os.getpid(), waited_s=round(waited_s, 3))
    os.execvp(wanted["command"][0], wanted["command"])


# ---- In a session of its own, which the kernel's scheduler weighs apart from those that are measured ----


def session(*command: str) -> NoReturn:
    """Starts a background service. supervisord makes each program the leader of a group of processes, which may not
    found a session: it first joins its parent's group. The session gives it a group of its own number again, by which
    supervisord ends it with all that it started."""
    # In a container it leads a session already, or its parent is out of reach.
    with contextlib.suppress(OSError):
        if os.getsid(0) != os.getpid():
            os.setpgid(0, os.getpgid(os.getppid()))
            os.setsid()
    os.execvp(command[0], command)


# ---- Airflow's scheduler ----

# What Airflow calls a worker of the LocalExecutor, and the process in it that runs a task.
TITLE = "airflow worker -- "


def scheduler(*command: str) -> NoReturn:
    """Starts it after the task processes of a killed one are ended. Workers of the LocalExecutor hold both ends of
    their own queue, so they never learn that their scheduler is gone: an idle one would wait for ever, a busy one would
    continue a task that the new scheduler begins once more."""
    from faultline.system.process_ledger import end_processes
    from faultline.system.settings import load_settings

    if ended := end_processes(orphaned_tasks(load_settings(), list(command))):
        print(f"ended what the last scheduler left: {len(ended)} processes", flush=True)
    os.execvp(command[0], command)


def orphaned_tasks(settings: Settings, command: list[str]) -> list[psutil.Process]:
    """Task processes of this installation with all that they started, when no scheduler runs.

    A worker that was just forked still bears the scheduler's own `command`. Detached processes are nobody's children:
    they belong to an attempt, and whoever measures next decides about them.
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


# ---- The Spark that stays ----


def spark_session() -> NoReturn:
    """Starts `spark_jobs/job_server.py`, which runs harvest and aggregate. Settings are those of a small job: the
    optimising compiler and adaptive plans cost such a job more than they bring, and they would be at work after it,
    beside what is measured next."""
    from faultline.engines.spark.settings import LOCAL_MASTER, batch_settings, program, spark_environment
    from faultline.installation.cds_archive import find_archive
    from faultline.installation.java import find_java
    from faultline.installation.spark import spark_submit
    from faultline.system.secrets import read_secrets
    from faultline.system.settings import load_settings

    settings = load_settings()
    # Master and workers know what it says: another would let nobody in.
    read_secrets(settings.secrets)
    conf = batch_settings(settings, archive=find_archive(settings))
    socket = ("--socket", str(settings.session_socket))
    command = spark_submit(
        settings, conf, program(settings, "job_server"), *socket, master=LOCAL_MASTER, name="session"
    )
    environment = {**os.environ, **spark_environment(settings, find_java(settings.home / "java.json").home)}
    os.execve(command[0], command, environment)


# ---- The first process of a host: when it ends, all of the host ends ----


def host(name: str, folder: str) -> NoReturn:
    """Buries whoever nobody waits for. Names are looked up in `folder` alone: without an answer a broker would wait for
    a name server that no host reaches."""
    import signal
    import socket
    import subprocess

    socket.sethostname(name)
    for file in ("hosts", "resolv.conf"):
        # In this host's own view of the file system.
        subprocess.run(["mount", "--bind", str(Path(folder) / file), f"/etc/{file}"], check=True)
    # The first process of a space of process ids gets only signals that it handles.
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
