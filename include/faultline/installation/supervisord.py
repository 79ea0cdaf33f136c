"""supervisord, which keeps the embedded services running: its configuration and XML-RPC calls."""

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
    """One supervised program. `ready` returns whether it answers; `environment` extends the common one."""

    name: str
    command: list[str]
    ready: Callable[[], bool]
    environment: dict[str, str] = field(default_factory=dict)
    stop_signal: str = "TERM"
    # A fault may delay its restart; see `faultline.installation.start`.
    victim: bool = False
    # Lowered during a measurement; see `faultline.system.background`.
    background: bool = False
    # Services with lower values start earlier and stop later; 999 is supervisor's default.
    priority: int = 999
    # Its namespace host, None for this machine; see `faultline.installation.hosts`.
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
    """Write supervisord's configuration. Raises InfrastructureError."""

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
    """Return the command that starts a service on its host.

    A possible victim starts after its restart delay; a background service starts in its own session.
    """
    command = _delayed_command(settings, service) if service.victim else service.command
    if service.background:
        command = [sys.executable, "-P", "-m", "faultline.installation.start", "session", *command]
    return command if service.host is None else enter_command(service.host, command)


def environment_of(settings: Settings, service: Service) -> dict[str, str]:
    """Return a service's environment variables in addition to the common ones."""
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


# ---- Client of the daemon, over its Unix socket ----


class Supervisor:
    """Client of the supervisor daemon of one installation."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def call(self, method: str, *arguments: object) -> Any:
        """Make one XML-RPC call over the Unix socket. Raises OSError if the daemon is not running."""
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
        """Return the state by service name, such as RUNNING or BACKOFF; empty without a daemon."""
        return {name: info["statename"] for name, info in self._infos().items()}

    def pids(self) -> dict[str, int]:
        """Return the pid by name of running services."""
        return {name: int(info["pid"]) for name, info in self._infos().items() if info["pid"]}

    def _infos(self) -> dict[str, dict[str, Any]]:
        try:
            return {info["name"]: info for info in self.call("supervisor.getAllProcessInfo")}
        except (OSError, xmlrpc.client.Error):
            return {}

    def start(self, name: str) -> None:
        """Start one service; do nothing if it is running."""
        with contextlib.suppress(xmlrpc.client.Fault):  # ALREADY_STARTED
            self.call("supervisor.startProcess", name, False)

    def start_failed(self) -> None:
        """Start again the services that supervisord gave up, such as after a full disk."""
        for name, state in self.states().items():
            if state == "FATAL":
                self.start(name)

    def remove(self, names: Iterable[str]) -> None:
        """Stop services and remove them from the daemon."""
        for name in names:
            with contextlib.suppress(xmlrpc.client.Fault):  # NOT_RUNNING
                self.call("supervisor.stopProcessGroup", name)
            with contextlib.suppress(xmlrpc.client.Fault):  # BAD_NAME: removed already
                self.call("supervisor.removeProcessGroup", name)

    def reload(self) -> None:
        """Load programs added to the configuration."""
        added, _changed, _removed = self.call("supervisor.reloadConfig")[0]
        for group in added:
            with contextlib.suppress(xmlrpc.client.Fault):
                self.call("supervisor.addProcessGroup", group)
