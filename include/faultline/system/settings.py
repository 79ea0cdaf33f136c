"""Paths of an installation, and loopback ports of the embedded services.

Everything that Faultline creates is in two folders: the state directory (`.faultline/`, environment variable
FAULTLINE_HOME) and the results (`results/`, FAULTLINE_RESULTS).
"""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import socket
import stat
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from faultline.system.child_environment import has_shared_results
from faultline.system.endpoints import HOST as HOST
from faultline.system.endpoints import LOCAL_PLACEMENT, Endpoints, Placement, read_placement
from faultline.system.errors import ConfigError
from faultline.system.files import find_private_folder, make_private_folder, reject_damaged

ROOT = Path(__file__).resolve().parents[3]
# Number of Spark workers on one machine, and the smallest number on several hosts.
WORKERS = 2
# A Unix socket's path holds at most 107 bytes on Linux (sun_path), 103 on macOS.
MAX_SOCKET_PATH = 100

# Default name of the machine lock; FAULTLINE_MACHINE overrides it.
MACHINE = "machine"

DEFAULT_PORTS: dict[str, int] = {
    "kafka": 19092,
    "kafka_controller": 19093,
    "kafka_proxied": 19094,
    "kafka_proxy": 19095,
    "kafka_gated": 19096,
    "kafka_gate": 19097,
    "spark_master": 17077,
    "spark_master_ui": 18080,
    "spark_worker_1": 17081,
    "spark_worker_1_ui": 18081,
    "spark_worker_2": 17082,
    "spark_worker_2_ui": 18082,
    "airflow": 18090,
}
_WORKER = "spark_worker_"
_EPHEMERAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


def ports_with(workers: int) -> dict[str, int]:
    """Return the default ports of an installation with `workers` Spark workers, at least two."""
    more = {f"{_WORKER}{number}": 17080 + number for number in range(3, workers + 1)}
    more |= {f"{_WORKER}{number}_ui": 18080 + number for number in range(3, workers + 1)}
    return {**DEFAULT_PORTS, **more}


class _InstallationPath:
    """Path of an installation, below one of its two folders."""

    def __init__(self, folder: str, *parts: str) -> None:
        self._folder, self._parts = folder, parts

    def __get__(self, settings: Settings, owner: type[Settings]) -> Path:
        return Path(getattr(settings, self._folder), *self._parts)


@dataclass(frozen=True)
class Settings:
    """Folders, ports and hosts of one installation; `ports` maps a service's port name to its number."""

    root: Path
    home: Path
    results: Path
    ports: dict[str, int] = field(default_factory=lambda: dict(DEFAULT_PORTS))
    # Name of the machine lock; experiments under different names run concurrently.
    machine: str = field(default_factory=lambda: os.environ.get("FAULTLINE_MACHINE") or MACHINE)
    placement: Placement = LOCAL_PLACEMENT
    # An external cluster in place of the embedded services; see `for_target`.
    target: Endpoints | None = None

    def for_target(self, endpoints: Endpoints) -> Self:
        """Return these settings for experiments on a target."""
        return replace(self, target=endpoints if endpoints.is_external else None)

    # Raw files of every attempt, a folder each.
    attempts = _InstallationPath("results", "attempts")
    # The records, `<config_id>/<attempt>.json`.
    records = _InstallationPath("results", "records")
    jars = _InstallationPath("home", "jars")
    # Readable by this user only; see `faultline.system.secrets`.
    secrets = _InstallationPath("home", "secrets")
    # Logs of the services.
    logs = _InstallationPath("home", "logs")
    airflow_home = _InstallationPath("home", "airflow")
    # Logging settings of every Spark process.
    spark_logging = _InstallationPath("home", "spark", "log4j2.properties")
    # Working directories of the Spark applications, by application and executor.
    spark_work = _InstallationPath("home", "spark", "work")
    # The last experiment of this installation that held the machine lock; written by the recorder.
    turn = _InstallationPath("home", "turn.json")
    # The measurement lock; see `faultline.system.locks`.
    window_lock = _InstallationPath("home", "window.lock")
    # Start times of possible victims among the services.
    services_journal = _InstallationPath("home", "services.jsonl")
    # One folder per namespace host.
    hosts = _InstallationPath("home", "hosts")

    @property
    def logins(self) -> Path:
        """Folder of the credential files: the secrets, or a target's folder."""
        return self.secrets if self.target is None else Path(self.target.logins)

    @property
    def spark_conf(self) -> Path:
        """Spark's settings folder, first on every class path; empty, since commands pass all settings.

        It belongs to the Python environment, so that one CDS archive serves all installations that share the jars.
        """
        return self.cds_folder / "conf"

    @property
    def cds_folder(self) -> Path:
        """Folder of the CDS archive."""
        return Path(sys.prefix) / "share" / "faultline"

    def restart_delay(self, service: str) -> Path:
        """Return the file of a service's restart delay; see `faultline.installation.start`."""
        return self.home / "holds" / f"{service}.json"

    @property
    def supervisor_socket(self) -> Path:
        return self._socket("supervisor")

    @property
    def session_socket(self) -> Path:
        """Socket of the persistent Spark session; see `faultline.engines.spark.job_client`."""
        return self._socket("session")

    def _socket(self, name: str) -> Path:
        inside = self.home / f"{name}.sock"
        if len(str(inside)) <= MAX_SOCKET_PATH:
            return inside
        elsewhere = find_private_folder(self._sockets)
        return inside if elsewhere is None else elsewhere / f"{name}.sock"

    @property
    def _sockets(self) -> Path:
        """Link to a folder with a short path, for a state directory whose path is too long for sockets."""
        return self.home / "sockets"

    def make_socket_folder(self) -> None:
        """Make the folder for sockets, before a service listens. Raises as `make_private_folder`."""
        if len(str(self.home / "supervisor.sock")) > MAX_SOCKET_PATH:
            make_private_folder(self._sockets, Path(tempfile.gettempdir()))

    @property
    def endpoints(self) -> Endpoints:
        """Addresses of the services."""
        return self.target or Endpoints.embedded(self.ports, self.placement, str(self.secrets))

    @property
    def workers(self) -> tuple[int, ...]:
        """Numbers of the Spark workers."""
        return workers_of(self.ports)


def workers_of(ports: Mapping[str, int]) -> tuple[int, ...]:
    """Return the numbers of the Spark workers that have ports."""
    parts = (name.removeprefix(_WORKER) for name in ports if name.startswith(_WORKER))
    return tuple(sorted(int(part) for part in parts if part.isdecimal()))


def load_settings() -> Settings:
    """Return the settings of this checkout, with the ports of the last `up`."""
    home = Path(os.environ.get("FAULTLINE_HOME") or ROOT / ".faultline").absolute()
    results = Path(os.environ.get("FAULTLINE_RESULTS") or ROOT / "results").absolute()
    ports = dict(DEFAULT_PORTS)
    chosen = home / "ports.json"
    if chosen.exists():
        with reject_damaged(chosen, "delete it; `up` rewrites it"):
            ports.update(json.loads(chosen.read_text()))
    return Settings(ROOT, home, results, ports, placement=read_placement(home))


# File with the addresses of a target, in its folder.
ENDPOINTS = "endpoints.json"


def targets_folder(home: Path) -> Path:
    """Return the folder of the target registry; see `faultline.system.target_registry`."""
    return home / "targets"


# File with the mark and options of the current `up`, in the state directory.
INSTANCE = "instance.json"


def instance(settings: Settings) -> dict[str, str]:
    """Return {"instance": mark, "results": folder} of the current `up`; empty without one."""
    try:
        value: dict[str, str] = json.loads((settings.home / INSTANCE).read_text())
    except (OSError, ValueError):
        return {}
    return value


AUTH_DISABLED_TEXT = (
    "OPEN: services accept every local user, because FAULTLINE_NO_AUTH was set at `up`; fix: `down`, then `up` without "
    "it"
)


def is_auth_disabled(settings: Settings) -> bool:
    """Return whether the current `up` disabled authentication, to measure its cost."""
    return instance(settings).get("open") == "yes"


def check_folders(settings: Settings, *, need_mb: int = 500) -> None:
    """Raise ConfigError, naming folder and fix, for a folder that is not writable or a nearly full disk.

    Runs before a service starts.
    """
    for key, folder in (("FAULTLINE_HOME", settings.home), ("FAULTLINE_RESULTS", settings.results)):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _restrict_rights(key, folder, 0o750 if key == "FAULTLINE_RESULTS" and has_shared_results() else 0o700)
            if key == "FAULTLINE_RESULTS" and has_shared_results():
                # The group can now reach these folders.
                for below in filter(Path.is_dir, (settings.records, settings.attempts)):
                    _restrict_rights(key, below, 0o750)
            with tempfile.NamedTemporaryFile(dir=folder, prefix=".write-test-"):
                pass
        except OSError as error:
            raise ConfigError(
                f"{key}: {folder} is not writable ({error.strerror}); fix: make it writable, or change {key}"
            ) from None
        free_mb = shutil.disk_usage(folder).free // 2**20
        if free_mb < need_mb:
            raise ConfigError(
                f"{key}: {folder} has {free_mb} MB free; expected {need_mb} MB; fix: free disk space, or change {key}"
            )


def _restrict_rights(key: str, folder: Path, widest: int) -> None:
    """Remove others' rights beyond `widest`. Raises ConfigError for a folder that others can change."""
    found = folder.stat()
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid not in (os.geteuid(), 0):
        raise ConfigError(f"{key}: {folder} is owned by user {found.st_uid}; expected this user; fix: change {key}")
    if mode & 0o022:
        raise ConfigError(f"{key}: {folder} has mode {mode:04o}, writable by others; fix: chmod go-w {folder}")
    if mode & ~widest:
        folder.chmod(mode & widest)


def port_is_free(port: int) -> bool:
    """Return whether the loopback port can be bound."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """Return a free loopback port outside the kernel's ephemeral range."""
    given_out = int(_EPHEMERAL_PORTS.read_text().split()[0])
    while True:
        # Above the default ports, which are free while no service runs.
        port = random.SystemRandom().randrange(20_000, max(given_out, 25_000))
        if port_is_free(port):
            return port


def _claim(port: int, claims: ExitStack) -> bool:
    """Return whether no other starting installation has claimed the port."""
    claim = socket.socket(socket.AF_UNIX)
    try:
        # An abstract socket name (Linux) needs no file, is visible to all processes, and is released with this one.
        claim.bind(f"\0faultline-port-{port}")
    except OSError as error:
        claim.close()
        return error.errno != errno.EADDRINUSE
    claims.enter_context(claim)
    return True


def choose_ports(
    wanted: dict[str, int], explicit: frozenset[str] = frozenset(), claims: ExitStack | None = None
) -> dict[str, int]:
    """Return the wanted ports; replace each busy one by the next free port above it.

    Raises ConfigError for a busy port in `explicit`. While `claims` is open, no other call with claims chooses the same
    ports, even if no service listens on them yet.
    """
    chosen: dict[str, int] = {}
    for name, port in wanted.items():
        if not 1024 <= port <= 65535:
            raise ConfigError(f"port {name}={port}: expected 1024 to 65535")
        candidate = port
        while (
            candidate in chosen.values()
            or not port_is_free(candidate)
            or not (claims is None or _claim(candidate, claims))
        ):
            if name in explicit:
                raise ConfigError(f"port {name}={port}: busy; fix: stop the listener, or choose another with --port")
            candidate += 1
            if candidate > 65535:
                raise ConfigError(f"port {name}: no free port above {port}; fix: --port {name}=NUMBER")
        chosen[name] = candidate
    return chosen
