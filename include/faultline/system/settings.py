"""Where things lie, and which loopback ports the embedded services listen on.

Everything that Faultline makes stands under two folders: the state directory (`.faultline/`,
environment variable FAULTLINE_HOME) and the results (`results/`, FAULTLINE_RESULTS).
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
# Spark workers of an installation on one machine, and the least of one on several.
WORKERS = 2
# A Unix socket's path holds at most 107 bytes on Linux (sun_path), 103 on macOS.
MAX_SOCKET_PATH = 100

# What a machine goes by for the lock of it, unless FAULTLINE_MACHINE says otherwise.
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
    """The default ports of an installation with so many Spark workers, of which there are two at least."""
    more = {f"{_WORKER}{number}": 17080 + number for number in range(3, workers + 1)}
    more |= {f"{_WORKER}{number}_ui": 18080 + number for number in range(3, workers + 1)}
    return {**DEFAULT_PORTS, **more}


class _InstallationPath:
    """A path of an installation, below one of its two folders."""

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
    # Experiments under another name are not waited for, and do not wait.
    machine: str = field(default_factory=lambda: os.environ.get("FAULTLINE_MACHINE") or MACHINE)
    placement: Placement = LOCAL_PLACEMENT
    # Of a cluster that exists, in place of the embedded services; see `at`.
    target: Endpoints | None = None

    def for_target(self, endpoints: Endpoints) -> Self:
        """These settings for what runs on a target."""
        return replace(self, target=endpoints if endpoints.is_external else None)

    # Raw files of every attempt, a folder each.
    attempts = _InstallationPath("results", "attempts")
    # The records, `<config_id>/<attempt>.json`.
    records = _InstallationPath("results", "records")
    jars = _InstallationPath("home", "jars")
    # What only this user may read; see `faultline.system.secrets`.
    secrets = _InstallationPath("home", "secrets")
    # Logs of the services.
    logs = _InstallationPath("home", "logs")
    airflow_home = _InstallationPath("home", "airflow")
    # Logging settings of every Spark process.
    spark_logging = _InstallationPath("home", "spark", "log4j2.properties")
    # Working directories of the Spark applications, by application and executor.
    spark_work = _InstallationPath("home", "spark", "work")
    # Which of this installation's experiments had the machine last; the recorder notes it.
    turn = _InstallationPath("home", "turn.json")
    # Held by the conductor while a window is measured, and shared by whatever works beside experiments.
    window_lock = _InstallationPath("home", "window.lock")
    # When each service that faults may hit was started.
    services_journal = _InstallationPath("home", "services.jsonl")
    # What the hosts have for themselves, a folder each.
    hosts = _InstallationPath("home", "hosts")

    @property
    def logins(self) -> Path:
        """What programs log in with where they run: among the secrets, or in the folder of a target."""
        return self.secrets if self.target is None else Path(self.target.logins)

    @property
    def spark_conf(self) -> Path:
        """Spark's settings folder, first on every class path; empty, since all settings are given by command.

        It belongs to the Python environment, as Spark's jars do, so that one class-data archive serves all
        installations that share them.
        """
        return self.cds_folder / "conf"

    @property
    def cds_folder(self) -> Path:
        """Where the class-data archive lies."""
        return Path(sys.prefix) / "share" / "faultline"

    def restart_delay(self, service: str) -> Path:
        """A fault's word on how long `service` stays down; see `faultline.installation.start`."""
        return self.home / "holds" / f"{service}.json"

    @property
    def supervisor_socket(self) -> Path:
        return self._socket("supervisor")

    @property
    def session_socket(self) -> Path:
        """Where the Spark that stays takes its jobs; see `faultline.engines.spark.job_client`."""
        return self._socket("session")

    def _socket(self, name: str) -> Path:
        inside = self.home / f"{name}.sock"
        if len(str(inside)) <= MAX_SOCKET_PATH:
            return inside
        elsewhere = find_private_folder(self._sockets)
        return inside if elsewhere is None else elsewhere / f"{name}.sock"

    @property
    def _sockets(self) -> Path:
        """Names a folder with a short path, where that of the state directory is too long for sockets."""
        return self.home / "sockets"

    def make_socket_folder(self) -> None:
        """To be called before anybody is to listen. Raises InfrastructureError as `make_private_folder`."""
        if len(str(self.home / "supervisor.sock")) > MAX_SOCKET_PATH:
            make_private_folder(self._sockets, Path(tempfile.gettempdir()))

    @property
    def endpoints(self) -> Endpoints:
        """Where the services are reached."""
        return self.target or Endpoints.embedded(self.ports, self.placement, str(self.secrets))

    @property
    def workers(self) -> tuple[int, ...]:
        """The numbers of the Spark workers."""
        return workers_of(self.ports)


def workers_of(ports: Mapping[str, int]) -> tuple[int, ...]:
    """The numbers of the Spark workers that have ports."""
    parts = (name.removeprefix(_WORKER) for name in ports if name.startswith(_WORKER))
    return tuple(sorted(int(part) for part in parts if part.isdecimal()))


def load_settings() -> Settings:
    """Settings of this checkout, with the ports that the last `up` chose."""
    home = Path(os.environ.get("FAULTLINE_HOME") or ROOT / ".faultline").absolute()
    results = Path(os.environ.get("FAULTLINE_RESULTS") or ROOT / "results").absolute()
    ports = dict(DEFAULT_PORTS)
    chosen = home / "ports.json"
    if chosen.exists():
        with reject_damaged(chosen, "delete it, and `up` writes it anew"):
            ports.update(json.loads(chosen.read_text()))
    return Settings(ROOT, home, results, ports, placement=read_placement(home))


# In the folder of a target: where it is reached.
ENDPOINTS = "endpoints.json"


def targets_folder(home: Path) -> Path:
    """Where an installation keeps what it knows of targets; see `faultline.system.target_registry`."""
    return home / "targets"


# What the `up` that is in force says of itself, in the state directory.
INSTANCE = "instance.json"


def instance(settings: Settings) -> dict[str, str]:
    """{"instance": mark, "results": folder} of the `up` that is in force; empty when none is."""
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
    """Whether the `up` that is in force lets everybody in, which measures what keeping strangers out costs."""
    return instance(settings).get("open") == "yes"


def check_folders(settings: Settings, *, need_mb: int = 500) -> None:
    """Refuses folders that cannot be written, or a disk that is nearly full.

    Raises ConfigError naming the folder and the remedy, before anything is started.
    """
    for key, folder in (("FAULTLINE_HOME", settings.home), ("FAULTLINE_RESULTS", settings.results)):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _restrict_rights(key, folder, 0o750 if key == "FAULTLINE_RESULTS" and has_shared_results() else 0o700)
            if key == "FAULTLINE_RESULTS" and has_shared_results():
                # The group can come to them; nobody could before.
                for below in filter(Path.is_dir, (settings.records, settings.attempts)):
                    _restrict_rights(key, below, 0o750)
            with tempfile.NamedTemporaryFile(dir=folder, prefix=".write-test-"):
                pass
        except OSError as error:
            raise ConfigError(
                f"{key}: {folder} is not writable ({error.strerror}); make it writable or point {key} elsewhere"
            ) from None
        free_mb = shutil.disk_usage(folder).free // 2**20
        if free_mb < need_mb:
            raise ConfigError(
                f"{key}: {folder} has {free_mb} MB left, {need_mb} MB are needed; free some or point {key} elsewhere"
            )


def _restrict_rights(key: str, folder: Path, widest: int) -> None:
    """Takes from a folder what rights others have beyond `widest`. Raises ConfigError for one that they can change."""
    found = folder.stat()
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid not in (os.geteuid(), 0):
        raise ConfigError(f"{key}: {folder} belongs to user {found.st_uid}; point {key} elsewhere")
    if mode & 0o022:
        raise ConfigError(f"{key}: others can write {folder} (mode {mode:04o}); chmod go-w {folder}")
    if mode & ~widest:
        folder.chmod(mode & widest)


def port_is_free(port: int) -> bool:
    """True when nothing listens on the loopback port, and it can be bound."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """A loopback port that nothing listens on now, and that the kernel gives to nobody who asks for just any."""
    given_out = int(_EPHEMERAL_PORTS.read_text().split()[0])
    while True:
        # Above those of installations, which stand free while nothing runs.
        port = random.SystemRandom().randrange(20_000, max(given_out, 25_000))
        if port_is_free(port):
            return port


def _claim(port: int, claims: ExitStack) -> bool:
    """Whether no other installation that starts now has chosen the port."""
    claim = socket.socket(socket.AF_UNIX)
    try:
        # An abstract name: no file, the same for all users, and gone with this process. Linux only.
        claim.bind(f"\0faultline-port-{port}")
    except OSError as error:
        claim.close()
        return error.errno != errno.EADDRINUSE
    claims.enter_context(claim)
    return True


def choose_ports(
    wanted: dict[str, int], explicit: frozenset[str] = frozenset(), claims: ExitStack | None = None
) -> dict[str, int]:
    """Keeps each wanted port when it is free, else takes the next free one above it.

    A port in `explicit` was asked for by name, so a busy one is refused (ConfigError), not replaced. `claims`: as long
    as it is open, no other call with claims chooses the same ports, which nothing listens on yet.
    """
    chosen: dict[str, int] = {}
    for name, port in wanted.items():
        if not 1024 <= port <= 65535:
            raise ConfigError(f"port {name}={port}: outside 1024..65535; choose another")
        candidate = port
        while (
            candidate in chosen.values()
            or not port_is_free(candidate)
            or not (claims is None or _claim(candidate, claims))
        ):
            if name in explicit:
                raise ConfigError(f"port {name}={port}: busy; stop what listens there or choose another with --port")
            candidate += 1
            if candidate > 65535:
                raise ConfigError(f"port {name}: no free port above {port}; choose another with --port {name}=NUMBER")
        chosen[name] = candidate
    return chosen
