"""What supervisord runs: the services as its configuration has them, each on its host."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable

from faultline.experiment.attempt import write_json
from faultline.installation.hosts.enter import through
from faultline.installation.services.service import Service
from faultline.system.environment import files_mask
from faultline.system.files import write_private
from faultline.system.marks import BACKGROUND_MARK
from faultline.system.settings import Settings, instance

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
        umask=f"{files_mask():03o}",
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
    command = _that_minds_holds(settings, service) if service.victim else service.command
    if service.background:
        command = [sys.executable, "-P", "-m", "faultline.installation.own_session", *command]
    return command if service.host is None else through(service.host, command)


def environment_of(settings: Settings, service: Service) -> dict[str, str]:
    """Returns what a service has in its environment in addition to the common one."""
    mark = {BACKGROUND_MARK: str(instance(settings)["instance"])} if service.background else {}
    return {**service.environment, **mark}


def _that_minds_holds(settings: Settings, service: Service) -> list[str]:
    folder = settings.home / "services"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{service.name}.json"
    write_json(
        file,
        {
            "service": service.name,
            "command": service.command,
            "hold": str(settings.hold(service.name)),
            "journal": str(settings.services_journal),
        },
    )
    return [sys.executable, "-P", "-m", "faultline.installation.restart_hold", str(file)]
