"""Checks of `./faultline doctor`: what is installed, reachable and missing."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import psutil

from fault.process_sampler import has_run_delay
from faultline.engines.spark.distributions import distributions, require_unchanged
from faultline.experiment.attempt import unhealed_attempts, unhealed_text
from faultline.installation.airflow import airflow_health
from faultline.installation.flink import describe_engines
from faultline.installation.jars import verify
from faultline.installation.java import find_java
from faultline.installation.kafka import kafka_ready
from faultline.installation.software import versions
from faultline.installation.spark import master_state
from faultline.installation.supervisord import Supervisor
from faultline.system.background import background_methods
from faultline.system.errors import FaultlineError, InfrastructureError
from faultline.system.locks import MachineLock, false_lock_holders
from faultline.system.settings import AUTH_DISABLED_TEXT, Settings, check_folders, is_auth_disabled, load_settings
from faultline.system.target_registry import describe_addresses, load_targets


@dataclass(frozen=True)
class Check:
    """One check of this installation or a target.

    `run` returns a detail or raises FaultlineError; `success_text` replaces the detail. `is_slow`: takes seconds, or
    creates something.
    """

    name: str
    run: Callable[[], object]
    success_text: str | None = None
    is_slow: bool = False

    def result(self) -> tuple[dict[str, Any], FaultlineError | None]:
        """Return {"name", "ok", "detail"} and the error, None on success."""
        try:
            found = self.run()
            return {"name": self.name, "ok": True, "detail": self.success_text or str(found)}, None
        except FaultlineError as error:
            return {"name": self.name, "ok": False, "detail": str(error)}, error


def examine() -> dict[str, Any]:
    """Return the state of the installation as JSON values.

    Keys: {"ok", "machine", "checks": [{"name", "ok", "detail"}], "versions", "services", "ports", "ui",
    "engines": {name: text}, "experiment", "auth_disabled", "false_lock_holders", "targets": {name: where},
    "undo_failed": {attempt: why}, "measuring": [text]}.
    `ok` covers requirements only; stopped services do not make it false.
    """
    settings = load_settings()
    known, damaged = _targets(settings)
    java = _check("java", lambda: find_java(settings.home / "java.json").version)
    checks = [
        {"name": "python", "ok": True, "detail": platform.python_version()},
        java,
        _check("jars", lambda: verify(settings.home), "all verified"),
        *_builds(settings),
        *damaged,
        _check("folders", lambda: check_folders(settings), f"{settings.home}, {settings.results}"),
    ]
    state = master_state(settings) or {}
    workers = state.get("workers")
    return {
        "ok": all(check["ok"] for check in checks),
        "machine": {
            "cores": os.cpu_count(),
            "memory_mb": psutil.virtual_memory().total // 2**20,
            "disk_free_mb": shutil.disk_usage(settings.home).free // 2**20,
        },
        "checks": checks,
        "versions": versions(settings, java["detail"] if java["ok"] else "missing"),
        "services": {
            "processes": Supervisor(settings).states(),
            "kafka": _check("kafka", lambda: _kafka(settings))["ok"],
            "spark_workers": len(workers) if isinstance(workers, list) else 0,
            "airflow": airflow_health(settings),
        },
        "ports": settings.ports,
        "ui": settings.endpoints.airflow,
        "engines": describe_engines(settings),
        "experiment": holder.text if (holder := MachineLock(settings.machine).holder()) else None,
        "auth_disabled": is_auth_disabled(settings),
        "false_lock_holders": false_lock_holders(),
        "targets": known,
        "undo_failed": unhealed_attempts(settings.attempts, settings.home),
        "measuring": [background_methods().text, _interference_text()],
    }


def _interference_text() -> str:
    if has_run_delay():
        return "interference: measured as run delay of the measured processes"
    return "interference: measured as background CPU (the kernel lacks CONFIG_SCHEDSTATS)"


def _kafka(settings: Settings) -> None:
    if not kafka_ready(settings.endpoints.kafka, settings.secrets):
        raise InfrastructureError("kafka: request failed: no answer")


def _targets(settings: Settings) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Return the addresses of each target, and a finding for damaged files."""
    try:
        return {one.name: describe_addresses(settings, one) for one in load_targets(settings).values()}, []
    except FaultlineError as error:
        return {}, [{"name": "targets", "ok": False, "detail": str(error)}]


def _builds(settings: Settings) -> list[dict[str, Any]]:
    """Return the checks that registered Spark builds are unchanged."""
    try:
        return [
            _check(f"spark build {one.name}", partial(require_unchanged, one), f"Spark {one.version}, {one.spark_home}")
            for one in distributions(settings).values()
        ]
    except FaultlineError as error:
        return [{"name": "spark builds", "ok": False, "detail": str(error)}]


def print_findings(findings: dict[str, Any]) -> None:
    """Print the findings for the user."""
    for check in findings["checks"]:
        print(f"{'ok     ' if check['ok'] else 'MISSING'} {check['name']}: {check['detail']}")
    machine, services = findings["machine"], findings["services"]
    print(
        f"        machine: {machine['cores']} cores, {machine['memory_mb'] / 1024:.0f} GB of memory, "
        f"{machine['disk_free_mb'] / 1024:.0f} GB of disk free"
    )
    print(f"        versions: {', '.join(f'{name} {value}' for name, value in findings['versions'].items())}")
    states = services["processes"]
    if not states:
        print("        services: down (./faultline up starts them)")
    for name, state in states.items():
        print(f"        {name}: {state.lower()}")
    if "airflow-api-server" in states:
        print(f"        UI: {findings['ui']}")
    if findings["experiment"]:
        print(f"        experiment: {findings['experiment']} holds the machine lock")
    if findings["auth_disabled"]:
        print(f"        {AUTH_DISABLED_TEXT}")
    for one in findings["false_lock_holders"]:
        print(f"        machine lock: ignoring {one}")
    for name, there in findings["targets"].items():
        print(f"        target {name}: {there}; `./faultline target check {name}` checks it")
    engines = (f"engine {name}: {text}" for name, text in findings["engines"].items())
    for text in (*engines, *findings["measuring"], *(unhealed_text(*one) for one in findings["undo_failed"].items())):
        print(f"        {text}")


def _check(name: str, run: Callable[[], object], success_text: str | None = None) -> dict[str, Any]:
    return Check(name, run, success_text).result()[0]
