"""Prepared attempts without processes."""

from __future__ import annotations

import json
import socket
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from faultline.engines.registry import engine_of
from faultline.experiment.attempt import Attempt, write_json
from faultline.experiment.attempt_plan import Ordered, Places, PlannedEngine, program_of, resolve, topic_partitions
from faultline.experiment.config import Configuration, parse_configuration
from faultline.experiment.run import Run, run_of
from faultline.system.endpoints import Endpoints
from faultline.system.settings import DEFAULT_PORTS, ROOT, Settings
from scripts.migrate import migrated_plan

ID = "20261121T061500Z-3fa9c1"
ENDPOINTS = Endpoints.embedded(DEFAULT_PORTS)
ADDRESSES = {"master": "spark://127.0.0.1:7077", "ui": "http://127.0.0.1:4040", "ui_port": 4040}


def prepared(
    folder: Path,
    values: Mapping[str, Any] | Configuration | None = None,
    *,
    facts: Mapping[str, Any] | None = None,
    endpoints: Endpoints = ENDPOINTS,
    places: Places | None = None,
    engine: PlannedEngine | None = None,
    plan: Mapping[str, Any] | None = None,
    **order: Any,
) -> Attempt:
    """Write an attempt of the configuration `values` and return it.

    `facts`: additional keys of `attempt.json`; `order`: fields of `Ordered`; `plan`: overrides of the resolved plan.
    """
    config = values if isinstance(values, Configuration) else parse_configuration(dict(values or {}))
    attempt, its_engine = Attempt(folder), engine_of(config)
    folder.mkdir(parents=True, exist_ok=True)
    defaults = {"attempt": folder.name, "home": "/nowhere", "owner": None, "run_id": None, "prepared_wall_ns": 1}
    write_json(folder / "attempt.json", {**defaults, "environment": {}, **(facts or {})})
    ordered = {"config_id": config.config_id, "repetition": 0, "series": "s1", "build": "b1", **order}
    resolved = resolve(
        config,
        Ordered(config=config.model_dump(mode="json"), **ordered),
        engine=engine or PlannedEngine(its_engine.name, ADDRESSES, {}, str(ROOT / "spark_jobs")),
        endpoints=endpoints,
        topics={role: f"{folder.name}-{role}" for role in topic_partitions(config)},
        places=places or Places(ports={one.role: 11211 for one in config.kind.companions(config.own)}),
        matching=its_engine.tuples(config),
        cycles=its_engine.capabilities.cycles,
    )
    resolved = replace(resolved, program=program_of(attempt, config, resolved))
    write_json(attempt.plan, {**resolved.as_mapping(), **(plan or {})})
    return attempt


def unpacked(archive: Path, target: Path) -> Path:
    """Unpack a golden attempt into `target`, migrate it if it is older than plans, and return its folder."""
    with tarfile.open(archive) as files:
        files.extractall(target, filter="data")
    (folder,) = (path for path in target.iterdir() if path.is_dir())
    if not (folder / "plan.json").exists():
        add_plan(folder)
    return folder


def add_plan(folder: Path) -> None:
    """Write the plan that `scripts/migrate.py` derives from an `attempt.json` older than plan schema 3."""
    write_json(folder / "plan.json", migrated_plan(json.loads((folder / "attempt.json").read_text()), None))


def unplanned(settings: Settings, name: str = ID, **facts: Any) -> Attempt:
    """Write an attempt of this installation with `attempt.json` only, without a plan, and return it."""
    attempt = Attempt(settings.attempts / name)
    attempt.folder.mkdir(parents=True)
    content = {"attempt": name, "home": str(settings.home), "environment": {"host": socket.gethostname()}, **facts}
    write_json(attempt.folder / "attempt.json", content)
    return attempt


def run_in(folder: Path, values: Mapping[str, Any] | Configuration | None = None, **given: Any) -> Run:
    """Prepare an attempt and return its run, with the installation next to it."""
    attempt = prepared(folder, values, **given)
    return run_of(attempt, Settings(ROOT, folder.parent / "home", folder.parent / "results"))
