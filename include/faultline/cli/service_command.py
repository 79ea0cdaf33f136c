"""`./faultline service`: has systemd bring the services up after a reboot, as the user's own, without root."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from faultline.system.child_environment import SERVICE_NAMES, workload_variables
from faultline.system.errors import ConfigError
from faultline.system.files import write_private
from faultline.system.settings import Settings, load_settings
from faultline.system.text import progress

app = typer.Typer(help="Start the services after a reboot, with systemd.", no_args_is_help=True)

UNIT = "faultline.service"
# Beside the units: links to those that systemd starts by itself, as the unit's own [Install] has it.
_ENABLED = "default.target.wants"
_OF_UP = ("FAULTLINE_DATABASE", "FAULTLINE_ADMIN_PASSWORD", "FAULTLINE_NO_AUTH")
_SECRET = frozenset(_OF_UP[:2])
MARK = "# Written by ./faultline service install; of the installation in "
_TEXT = """\
{mark}{home}
[Unit]
Description=Faultline: {what} for benchmarks
After=network.target
StartLimitIntervalSec=30min
StartLimitBurst=10

[Service]
{kind}
WorkingDirectory={root}
{environment}# By a relative path: in a command systemd reads spaces and $ its own way.
{commands}
TimeoutStartSec=20min
TimeoutStopSec=3min
# A database on this machine may come up later.
Restart=on-failure
RestartSec=30
UMask=0077

[Install]
WantedBy=default.target
"""

# Services outlive `up`; in the foreground they end with the command.
_UP = {
    "what": "Kafka, Spark and Airflow",
    "kind": "Type=oneshot\nRemainAfterExit=yes",
    "commands": "ExecStart=/bin/sh ./faultline up\nExecStop=/bin/sh ./faultline down",
}
_FOREGROUND = {
    "what": "Kafka and Spark, for an external Airflow",
    "kind": "Type=exec\nKillMode=mixed",
    "commands": "ExecStart=/bin/sh ./faultline up --no-airflow --foreground",
}


@app.command()
def install(
    external_airflow: Annotated[
        bool, typer.Option("--external-airflow", help="Run in the foreground without Airflow.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the unit file; write nothing.")] = False,
) -> None:
    """Write a systemd unit that runs `up` at boot. It is not enabled; the command prints how to enable it."""
    settings, path = load_settings(), unit_path()
    if dry_run:
        print(unit_text(settings, path, external_airflow=external_airflow, shown=True), end="")
        progress(f"{path} would be written; nothing was done: --dry-run")
        return
    write_unit(settings, path, external_airflow=external_airflow)
    progress(f"{path} is written; these make it run at each start of the machine:")
    print("systemctl --user daemon-reload")
    print(f"systemctl --user enable --now {UNIT}")
    print("loginctl enable-linger")


@app.command()
def remove() -> None:
    """Disable and remove the systemd unit of this installation."""
    settings, path = load_settings(), unit_path()
    _require_ours(settings, path)
    if os.path.lexists(path.parent / _ENABLED / UNIT):
        raise ConfigError(f"{path}: is enabled, so systemd starts it; first: systemctl --user disable --now {UNIT}")
    if not path.exists():
        raise ConfigError(f"{path}: there is none; nothing to remove")
    path.unlink()
    progress(f"{path} is removed; systemctl --user daemon-reload makes systemd forget it")


def unit_path() -> Path:
    """Where systemd looks for a user's own units."""
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "systemd" / "user" / UNIT


def write_unit(settings: Settings, path: Path, *, external_airflow: bool = False) -> None:
    """Writes the unit; `external_airflow`: for one, so without Airflow. Raises ConfigError as `unit_text`."""
    text = unit_text(settings, path, external_airflow=external_airflow)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror})") from None
    # What is handed on may hold passwords.
    write_private(path, text)


def unit_text(settings: Settings, path: Path, *, external_airflow: bool = False, shown: bool = False) -> str:
    """The unit; where it is `shown`, without the values of what may hold a password. Raises ConfigError when one is
    there that is not this installation's, or for a path that a unit cannot hold."""
    _require_ours(settings, path)
    for place in (settings.root, settings.home, settings.results):
        if any(character in str(place) for character in '\n%"\\'):
            raise ConfigError(f"{place}: a path with %, quotes or line breaks cannot stand in a unit; move it")
    places = {"FAULTLINE_HOME": str(settings.home), "FAULTLINE_RESULTS": str(settings.results)}
    given = {name: os.environ[name] for name in (*SERVICE_NAMES, *_OF_UP) if name in os.environ}
    given |= workload_variables() | places
    hidden = {*workload_variables(), *_SECRET} if shown else frozenset()
    lines = [f"{name}={'…' if name in hidden else _quoted(name, value)}" for name, value in given.items()]
    environment = "".join(f'Environment="{line}"\n' for line in lines)
    what = _FOREGROUND if external_airflow else _UP
    return _TEXT.format(mark=MARK, home=settings.home, root=settings.root, environment=environment, **what)


def _quoted(name: str, value: str) -> str:
    """The value as a unit has it between quotation marks, where % begins a specifier and a backslash an escape."""
    if not value.isprintable():
        raise ConfigError(f"{name}: holds a line break or another control character; a unit cannot hand it on")
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")


def _require_ours(settings: Settings, path: Path) -> None:
    if path.exists() and not path.read_text(errors="replace").startswith(f"{MARK}{settings.home}\n"):
        raise ConfigError(f"{path}: is of another installation, or was not written by this command; move it away first")
