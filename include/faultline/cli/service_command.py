"""`./faultline service`: a systemd user unit that starts the services after a reboot, without root."""

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

app = typer.Typer(name="service", help="Start the services after a reboot, with systemd.", no_args_is_help=True)

UNIT = "faultline.service"
# Folder with links to enabled units; named by `WantedBy`.
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
{environment}# A relative path, because systemd expands spaces and $ in a command.
{commands}
TimeoutStartSec=20min
TimeoutStopSec=3min
# A database on this machine may start later.
Restart=on-failure
RestartSec=30
UMask=0077

[Install]
WantedBy=default.target
"""

# Services continue after `up` has ended; with `--foreground` they end with the command.
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
        progress(f"dry run: {path} not written")
        return
    write_unit(settings, path, external_airflow=external_airflow)
    progress(f"wrote {path}; enable it with:")
    print("systemctl --user daemon-reload")
    print(f"systemctl --user enable --now {UNIT}")
    print("loginctl enable-linger")


@app.command()
def remove() -> None:
    """Disable and remove the systemd unit."""
    settings, path = load_settings(), unit_path()
    _require_own_unit(settings, path)
    if os.path.lexists(path.parent / _ENABLED / UNIT):
        raise ConfigError(f"{path}: enabled in systemd; fix: systemctl --user disable --now {UNIT}")
    if not path.exists():
        raise ConfigError(f"{path}: no unit to remove")
    path.unlink()
    progress(f"removed {path}; run systemctl --user daemon-reload")


def unit_path() -> Path:
    """Return the path of the systemd user unit."""
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "systemd" / "user" / UNIT


def write_unit(settings: Settings, path: Path, *, external_airflow: bool = False) -> None:
    """Write the unit, without Airflow if `external_airflow`. Raises ConfigError as `unit_text`."""
    text = unit_text(settings, path, external_airflow=external_airflow)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{path}: write failed: {error.strerror}") from None
    # The environment may hold passwords.
    write_private(path, text)


def unit_text(settings: Settings, path: Path, *, external_airflow: bool = False, shown: bool = False) -> str:
    """Return the text of the unit; if it is to be `shown`, without values that may contain a password.

    Raises ConfigError if `path` holds a unit of another installation, or if a unit cannot represent a path.
    """
    _require_own_unit(settings, path)
    for folder in (settings.root, settings.home, settings.results):
        if any(character in str(folder) for character in '\n%"\\'):
            raise ConfigError(
                f"{folder}: expected a path without %, quotes, backslashes and line breaks; fix: move the folder"
            )
    folders = {"FAULTLINE_HOME": str(settings.home), "FAULTLINE_RESULTS": str(settings.results)}
    given = (
        {name: os.environ[name] for name in (*SERVICE_NAMES, *_OF_UP) if name in os.environ}
        | workload_variables()
        | folders
    )
    hidden = {*workload_variables(), *_SECRET} if shown else frozenset()
    lines = [f"{name}={'…' if name in hidden else _escape(name, value)}" for name, value in given.items()]
    environment = "".join(f'Environment="{line}"\n' for line in lines)
    what = _FOREGROUND if external_airflow else _UP
    return _TEXT.format(mark=MARK, home=settings.home, root=settings.root, environment=environment, **what)


def _escape(name: str, value: str) -> str:
    """Escape a value for the quotation marks of a unit, where % and backslash are special."""
    if not value.isprintable():
        raise ConfigError(f"{name}: got a control character; expected printable characters")
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")


def _require_own_unit(settings: Settings, path: Path) -> None:
    if path.exists() and not path.read_text(errors="replace").startswith(f"{MARK}{settings.home}\n"):
        raise ConfigError(f"{path}: belongs to another installation or program; fix: move it")
