"""Preflight checks of a target's Spark: version, authentication, and the executors' view of files."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

from faultline.engines.spark import standalone
from faultline.engines.spark.hdfs import SCHEME, HdfsFolder
from faultline.engines.spark.settings import (
    driver_settings,
    kafka_jars,
    program,
    spark_environment,
)
from faultline.engines.spark.shared_storage import PROGRAMS
from faultline.installation.spark import LOG4J_SPARK, spark_submit
from faultline.installation.targets.machines import require_folder
from faultline.system.child_environment import clean_environment
from faultline.system.endpoints import Endpoints
from faultline.system.errors import ConfigError, FaultlineError, InfrastructureError
from faultline.system.files import write_private
from faultline.system.secrets import WORKLOAD, jaas_file, make_private
from faultline.system.settings import Settings
from faultline.system.text import one_line, pluralize

PAGE_S, PROBE_S, POLL_S = 5.0, 180.0, 0.5
PROBE_MEMORY_MB = 512
PROBE, LOG = "faultline-probe-", "probe.log"
_VERSION = re.compile(r'class="version[^"]*"[^>]*>\s*([^<\s]+)\s*<')
# Log lines of a driver with a wrong or missing secret.
_REFUSED = re.compile(
    r"SaslException|AEADBadTag|BadPadding|Mismatched response|Unable to (?:unwrap|decrypt)|"
    r"Expected SaslMessage|Unknown message type|Unexpected message type|Authentication failed|"
    r"Invalid (?:auth|challenge|response)|"
    # The master answers a wrong secret and closes the connection. On a busy machine the driver may see the close first.
    r"Exception while bootstrapping client[^\n]*\n[^\n]*(?:InterruptedException|Connection from \S+ closed)"
)
_ANOTHER_VERSION = re.compile(r"InvalidClassException|serialVersionUID|local class incompatible")
_NO_ROOM = "Initial job has not accepted any resources"
_UNRESPONSIVE = "All masters are unresponsive"


def check_master(settings: Settings, connection: str) -> dict[str, Any]:
    """Return the standalone master's state. Raises InfrastructureError if it is down or has no workers."""
    endpoints = settings.endpoints
    state = standalone.master_state(endpoints)
    if state is None:
        raise InfrastructureError(
            f"Connection {connection}: the master's page {endpoints.engine_ui} does not answer; fix: start it, or set "
            "ui in the extra"
        )
    _require_same_master(endpoints, str(state.get("url", "")), connection)
    if not workers_of(state):
        raise InfrastructureError(f"Connection {connection}: {endpoints.engine} has no live worker; fix: start one")
    return state


def _require_same_master(endpoints: Endpoints, url: str, connection: str) -> None:
    """Raise ConfigError if the page belongs to another master. Alias host names are accepted."""
    masters = endpoints.engine.removeprefix("spark://").split(",")
    name = url.removeprefix("spark://")
    if name not in masters and name.rpartition(":")[0] in {one.rpartition(":")[0] for one in masters}:
        raise ConfigError(
            f"Connection {connection}: {endpoints.engine_ui} is the page of {url}; expected {endpoints.engine}; "
            "fix: correct host and port, or ui in the extra"
        )


def require_local_address(endpoints: Endpoints, connection: str) -> None:
    """Raise ConfigError unless the address given to executors belongs to this machine."""
    found = []
    with contextlib.suppress(OSError):
        found = socket.getaddrinfo(endpoints.here.strip("[]"), 0, type=socket.SOCK_STREAM)
    for family, kind, *_, address in found:
        with contextlib.suppress(OSError), socket.socket(family, kind) as listener:
            listener.bind(address)
            return
    raise ConfigError(
        f"Connection {connection}: extra: driver-host: got {endpoints.here}; expected an address of this machine that "
        "executors can reach"
    )


def workers_of(state: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the live workers."""
    return [one for one in state.get("workers", []) if one.get("state") == "ALIVE"]


def check_versions(settings: Settings, connection: str, state: Mapping[str, Any], installed: str) -> str:
    """Compare the versions on all pages. Raises ConfigError naming a process whose version is not `installed`."""
    pages = {"the master": settings.endpoints.engine_ui}
    pages |= {f"the worker {one['host']}:{one['port']}": str(one["webuiaddress"]) for one in workers_of(state)}
    silent = []
    # In parallel, since unreachable pages time out.
    with ThreadPoolExecutor(len(pages)) as pool:
        found_versions = dict(zip(pages, pool.map(page_version, pages.values()), strict=True))
    for process, found in found_versions.items():
        if found is None:
            silent.append(process)
        elif found != installed:
            raise ConfigError(
                f"Connection {connection}: {process}: got Spark {found}; expected the installed Spark {installed}; "
                "fix: install the same version on both"
            )
    known = f"Spark {installed} on {pluralize(len(pages) - len(silent), 'page')}"
    return known if not silent else f"{known}; version unknown: {', '.join(silent)}"


def page_version(page: str) -> str | None:
    """Return the version on one of Spark's pages; None if there is none."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(page, timeout=PAGE_S) as answer:
            match = _VERSION.search(answer.read().decode(errors="replace"))
    except (OSError, ValueError):
        return None
    return match.group(1) if match else None


def run_probe(settings: Settings, connection: str, storage_connection: str, java_home: Path, workers: int) -> str:
    """Run an executor on each worker that checks the required files and the storage.

    Raises ConfigError for a refused secret or storage that is not shared, InfrastructureError for any other failure.
    """
    folder, endpoints = settings.logins, settings.endpoints
    require_local_address(endpoints, connection)
    in_hdfs = endpoints.storage.startswith(SCHEME)
    # With checkpoints in HDFS, the probe's own files are in the folder of the credential files.
    shared = folder if in_hdfs else Path(endpoints.storage)
    require_folder(shared, storage_connection)
    paths = [str(settings.root / PROGRAMS), *map(str, kafka_jars(settings)), str(jaas_file(folder, WORKLOAD))]
    # A random token separates concurrent probes.
    token = secrets.token_hex(6)
    probe_folder, local = shared / f"{PROBE}{token}", folder / f"look-{token}"
    make_private(local)
    report, request, log = local / "probe.json", local / "probe.config.json", local / LOG
    config = {"folder": str(probe_folder), "hdfs": endpoints.storage if in_hdfs else None, "paths": paths}
    write_private(request, json.dumps({**config, "report": str(report)}))
    logging = folder / "log4j2.properties"
    write_private(logging, LOG4J_SPARK)
    conf = {
        **driver_settings(endpoints.here),
        "spark.cores.max": str(workers),
        "spark.executor.cores": "1",
        "spark.executor.memory": f"{PROBE_MEMORY_MB}m",
        "spark.driver.memory": "512m",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(local),
        "spark.driver.extraJavaOptions": f'-Dlog4j2.configurationFile={logging.as_uri()} "-Djava.io.tmpdir={local}"',
    }
    command = spark_submit(
        settings, conf, program(settings, "probe"), "--config", str(request), master=endpoints.engine,
        name=f"faultline target check {endpoints.target}",
    )  # fmt: skip
    try:
        _run(settings, command, java_home, log, connection)
        reported = json.loads(report.read_text()) if report.exists() else {"executors": []}
    finally:
        # Clean up even after a failed probe.
        with contextlib.suppress(OSError):
            log.replace(folder / LOG)
        if in_hdfs:
            with contextlib.suppress(FaultlineError):
                (HdfsFolder(endpoints.storage, endpoints.storage_web) / probe_folder.name).remove()
        for leftover in (probe_folder, local):
            shutil.rmtree(leftover, ignore_errors=True)
    if why := reported.get("hdfs"):
        raise ConfigError(
            f"Connection {storage_connection}: extra: path: executors cannot access {endpoints.storage}: "
            f"{one_line(why)[:200]}; fix: allow them to reach and write it"
        )
    require_access(reported["executors"], connection, storage_connection, shared)
    hosts = ", ".join(sorted(one["host"] for one in reported["executors"]))
    return f"authentication accepted, executors on {hosts} share {endpoints.storage}"


def require_access(
    executors: Sequence[Mapping[str, Any]], connection: str, storage_connection: str, storage: Path
) -> None:
    """Raise ConfigError for files or storage that an executor reports as inaccessible."""
    if not executors:
        raise InfrastructureError(
            f"Connection {connection}: probe failed: no executor reported; fix: see probe.log of the target"
        )
    for one in executors:
        where = f"executors on {one['host']} (user {one['user']})"
        if one["unreadable"]:
            raise ConfigError(
                f"Connection {connection}: {where} cannot read {one['unreadable'][0]}; fix: run workers as this user "
                "with Faultline's folders at the same paths"
            )
        if not one["sees"] or one["wrote"]:
            why = one["wrote"] or "do not see this machine's files"
            raise ConfigError(
                f"Connection {storage_connection}: extra: path: {where} cannot access {storage}: {one_line(why)}; fix: "
                "share it with all workers at this path"
            )


def _run(settings: Settings, command: Sequence[str], java_home: Path, log: Path, connection: str) -> None:
    """Run the probe until it ends or its log shows a failure."""
    # SPARK_LOCAL_DIRS overrides spark.local.dir.
    environment = clean_environment(spark_environment(settings, java_home)) | {"SPARK_LOCAL_DIRS": str(log.parent)}
    kept = settings.logins / LOG
    log.touch(0o600)
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        try:
            deadline = time.monotonic() + PROBE_S
            while process.poll() is None:
                if (problem := failure_in_log(log.read_text(errors="replace"), connection)) is not None:
                    raise problem
                if time.monotonic() > deadline:
                    raise InfrastructureError(f"Connection {connection}: probe failed: timeout; fix: see {kept}")
                time.sleep(POLL_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if process.returncode:
        text = log.read_text(errors="replace")
        lines = [line for line in text.splitlines() if "Exception" in line or "Error" in line]
        why = one_line(lines[-1])[-200:] if lines else f"status {process.returncode}"
        raise failure_in_log(text, connection) or InfrastructureError(
            f"Connection {connection}: probe failed: {why}; fix: see {kept}"
        )


def failure_in_log(log: str, connection: str) -> FaultlineError | None:
    """Return the error that the driver's log shows, or None."""
    # Search only up to where the driver gives up: it then interrupts its attempts, which logs similar lines.
    if _REFUSED.search(log.partition(_UNRESPONSIVE)[0]):
        return ConfigError(
            f"Connection {connection}: password: secret refused by the cluster; expected the cluster's "
            "spark.authenticate.secret, and its spark.network.crypto settings as conf in the extra"
        )
    if _ANOTHER_VERSION.search(log):
        return ConfigError(f"Connection {connection}: Spark versions differ; fix: install the same version on both")
    if _UNRESPONSIVE in log:
        return InfrastructureError(
            f"Connection {connection}: the master refused the application; fix: see the master's log"
        )
    if _NO_ROOM in log:
        return InfrastructureError(
            f"Connection {connection}: no free worker for an executor of 1 core and {PROBE_MEMORY_MB} MiB; fix: stop "
            "other applications, or add workers"
        )
    return None


def local_addresses() -> frozenset[str]:
    """Return all addresses of this machine."""
    return frozenset(one.address for many in psutil.net_if_addrs().values() for one in many)


def unreachable_workers(state: Mapping[str, Any], hosts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return addresses of workers that are neither on this machine nor on an SSH host."""
    known = local_addresses() | {str(one["host"]) for one in hosts.values()}
    return sorted({str(one["host"]) for one in workers_of(state)} - known)
