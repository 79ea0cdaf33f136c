"""supervisord, which keeps the embedded services running: what it runs, its configuration, and calls to it."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import xmlrpc.client
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from faultline.installation.hosts.namespace_host import enter_command
from faultline.system.child_environment import file_umask
from faultline.system.files import write_json, write_private
from faultline.system.process_tags import BACKGROUND_MARK
from faultline.system.settings import Settings, instance


@dataclass(frozen=True)
class Service:
    """One supervised program. `ready` says whether it answers; `environment` is added to the common one."""

    name: str
    command: list[str]
    ready: Callable[[], bool]
    environment: dict[str, str] = field(default_factory=dict)
    stop_signal: str = "TERM"
    # A fault may hold its restart back; see `faultline.installation.start`.
    victim: bool = False
    # Only runs the experiments, and gives way while one is measured; see `faultline.system.background`.
    background: bool = False
    # The lower, the later it is stopped; supervisor's own default.
    priority: int = 999
    # The host that it runs on, where that is not this machine; see `faultline.installation.hosts`.
    host: str | None = None


CONF_HEAD = """\
[unix_http_server]
file={socket}
chmod=0700

[supervisord]
umask={umask}
logfile={logs}/supervisord.log
logfile_maxbytes=5MB
pidfile={home}/supervisord.pid
childlogdir={logs}
minfds=1024
strip_ansi=true
{user}
[rpcinterface:supervisor]
supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface

[supervisorctl]
serverurl=unix://{socket}
"""

CONF_PROGRAM = """
[program:{name}]
command={command}
directory={directory}
environment={environment}
autostart=false
autorestart=true
startsecs=1
startretries=20
priority={priority}
stopsignal={stop_signal}
stopwaitsecs=15
stopasgroup=true
killasgroup=true
redirect_stderr=true
stdout_logfile={logs}/{name}.log
stdout_logfile_maxbytes=20MB
stdout_logfile_backups=1
"""


def write_configuration(settings: Settings, services: Iterable[Service]) -> None:
    """Writes what supervisord is to run. Raises InfrastructureError."""

    def escape(text: str) -> str:
        return text.replace("%", "%%")

    user = "user=root\n" if os.getuid() == 0 else ""
    text = CONF_HEAD.format(
        socket=escape(str(settings.supervisor_socket)),
        logs=escape(str(settings.logs)),
        home=escape(str(settings.home)),
        user=user,
        umask=f"{file_umask():03o}",
    )
    for service in services:
        text += CONF_PROGRAM.format(
            name=service.name,
            command=escape(" ".join(shlex.quote(part) for part in start_command(settings, service))),
            directory=escape(str(settings.home)),
            environment=escape(
                ",".join(f'{key}="{value}"' for key, value in environment_of(settings, service).items())
            ),
            stop_signal=service.stop_signal,
            priority=service.priority,
            logs=escape(str(settings.logs)),
        )
    write_private(settings.home / "supervisord.conf", text)


def start_command(settings: Settings, service: Service) -> list[str]:
    """What is run for a service: the service itself; for a possible victim a start that minds a fault's hold; for a
    background service one that gives it a session of its own; on its host."""
    command = _delayed_command(settings, service) if service.victim else service.command
    if service.background:
        command = [sys.executable, "-P", "-m", "faultline.installation.start", "session", *command]
    return command if service.host is None else enter_command(service.host, command)


def environment_of(settings: Settings, service: Service) -> dict[str, str]:
    """Returns what a service has in its environment in addition to the common one."""
    mark = {BACKGROUND_MARK: str(instance(settings)["instance"])} if service.background else {}
    return {**service.environment, **mark}


def _delayed_command(settings: Settings, service: Service) -> list[str]:
    folder = settings.home / "services"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{service.name}.json"
    write_json(
        file,
        {
            "service": service.name,
            "command": service.command,
            "hold": str(settings.restart_delay(service.name)),
            "journal": str(settings.services_journal),
        },
    )
    return [sys.executable, "-P", "-m", "faultline.installation.start", "held", str(file)]


# ---- The daemon, asked over its Unix socket ----


class Supervisor:
    """The supervisor daemon of one installation."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def call(self, method: str, *arguments: object) -> Any:
        """One XML-RPC call over the Unix socket. Raises OSError when the daemon is not there."""
        from supervisor.xmlrpc import SupervisorTransport

        transport = SupervisorTransport(None, None, f"unix://{self.settings.supervisor_socket}")
        try:
            proxy = xmlrpc.client.ServerProxy("http://127.0.0.1", transport=transport, allow_none=True)
            return getattr(proxy, method)(*arguments)
        finally:
            transport.close()

    def is_running(self) -> bool:
        try:
            return bool(self.call("supervisor.getState")["statename"] == "RUNNING")
        except (OSError, xmlrpc.client.Error):
            return False

    def states(self) -> dict[str, str]:
        """State by service name, such as RUNNING or BACKOFF; empty when the daemon is not there."""
        return {name: info["statename"] for name, info in self._infos().items()}

    def pids(self) -> dict[str, int]:
        """Pid by service name, of those that run."""
        return {name: int(info["pid"]) for name, info in self._infos().items() if info["pid"]}

    def _infos(self) -> dict[str, dict[str, Any]]:
        try:
            return {info["name"]: info for info in self.call("supervisor.getAllProcessInfo")}
        except (OSError, xmlrpc.client.Error):
            return {}

    def start(self, name: str) -> None:
        """Starts one service; one that runs already is left alone."""
        with contextlib.suppress(xmlrpc.client.Fault):  # ALREADY_STARTED
            self.call("supervisor.startProcess", name, False)

    def start_failed(self) -> None:
        """Starts the services that it has given up, as after many tries while a disk was full."""
        for name, state in self.states().items():
            if state == "FATAL":
                self.start(name)

    def remove(self, names: Iterable[str]) -> None:
        """Ends services for good: they are no longer part of it, until they are added again."""
        for name in names:
            with contextlib.suppress(xmlrpc.client.Fault):  # NOT_RUNNING
                self.call("supervisor.stopProcessGroup", name)
            with contextlib.suppress(xmlrpc.client.Fault):  # BAD_NAME: it is no part of it any more
                self.call("supervisor.removeProcessGroup", name)

    def reload(self) -> None:
        """Makes the daemon know the programs that were added to its configuration."""
        added, _changed, _removed = self.call("supervisor.reloadConfig")[0]
        for group in added:
            with contextlib.suppress(xmlrpc.client.Fault):
                self.call("supervisor.addProcessGroup", group)
