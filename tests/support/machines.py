"""Namespace hosts (emulated by Linux namespaces) of a test, without the other services of `up`."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
import pytest

from faultline.installation.hosts.layout import REQUIRED_PROGRAMS, choose_hosts, find_program
from faultline.installation.hosts.namespace_host import clear_hosts, enter_command, init_pid, prepare_hosts
from faultline.installation.services import host_services
from faultline.system.endpoints import Host
from faultline.system.process_tags import INSTANCE_MARK
from faultline.system.settings import ROOT, Settings, load_settings
from faultline.system.waiting import wait_until
from tests.support.external_cluster import Place
from tests.support.processes import words_of

# Marks of tests that create hosts.
NEEDS_HOSTS = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may create network namespaces"),
    pytest.mark.skipif(
        any(find_program(name) is None for name in REQUIRED_PROGRAMS), reason=f"needs {', '.join(REQUIRED_PROGRAMS)}"
    ),
]
# One id per test process, because cleanup ends all processes with its tag.
INSTANCE = secrets.token_hex(8)
SLEEPER = "import time; print('up', flush=True); time.sleep(900)"


@dataclass
class Machines:
    """Namespace hosts of an installation, started by this test."""

    settings: Settings
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def hosts(self) -> tuple[Host, ...]:
        return self.settings.placement.hosts

    def environment(self) -> dict[str, str]:
        paths = f"{ROOT / 'include'}{os.pathsep}{ROOT}"
        own = {"FAULTLINE_HOME": str(self.settings.home), INSTANCE_MARK: INSTANCE}
        return {**os.environ, "PYTHONPATH": paths, **own}

    def start(self) -> None:
        prepare_hosts(self.settings)
        for service in host_services(self.settings):
            command = service.command if service.host is None else enter_command(service.host, service.command)
            self.started.append(subprocess.Popen(command, env=self.environment(), stderr=subprocess.DEVNULL))
        for service in host_services(self.settings):
            wait_until(service.ready, timeout_s=120, what=service.name)

    def place(self, host: str) -> Place:
        """Return a place on a host for external programs, without Faultline's environment variables."""
        own = {name: self.environment()[name] for name in ("FAULTLINE_HOME", "PYTHONPATH")}
        without_own = ["env", *(word for name in own for word in ("-u", name))]
        words = ["env", *(f"{name}={value}" for name, value in own.items()), *enter_command(host, without_own)]
        return Place(next(one.address for one in self.hosts if one.name == host), tuple(words))

    def run(self, host: str, *command: str) -> subprocess.Popen[bytes]:
        """Start a command on a host with piped output."""
        self.started.append(
            subprocess.Popen(enter_command(host, command), env=self.environment(), stdout=subprocess.PIPE)
        )
        return self.started[-1]

    def pretend(self, host: str, *words: str, program: str = SLEEPER) -> subprocess.Popen[bytes]:
        """Start a process on a host and return it once its command line has these words."""
        process = self.run(host, sys.executable, "-c", program, *words)
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        return process

    def agent_on(self, host: str) -> psutil.Process | None:
        """Return the active agent on a host, not its watchdogs, whose parent is the host's init."""
        init = init_pid(self.settings, host)
        namespace = os.readlink(f"/proc/{init}/ns/pid")
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                is_agent = "i.read(int(i.readline()))" in " ".join(words_of(process.pid))
                is_inside = os.readlink(f"/proc/{process.pid}/ns/pid") == namespace
                if is_agent and is_inside and process.ppid() != init:
                    return process
        return None

    def end(self) -> None:
        for process in reversed(self.started):
            process.terminate()
        for process in self.started:
            process.wait(120)
            if process.stdout is not None:
                process.stdout.close()
        clear_hosts(self.settings)


@contextmanager
def machines_at(home: Path, count: int = 3) -> Iterator[Machines]:
    """Yield `count` running hosts. `home`: the state folder of their installation."""
    home.mkdir(parents=True, exist_ok=True)
    settings = replace(load_settings(), home=home)
    made = Machines(replace(settings, placement=choose_hosts(settings, count)))
    try:
        made.start()
        yield made
    finally:
        made.end()
