"""Environment of a measurement: host, versions, settings, and the build label that follows from them."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import socket
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil

from faultline.engines.registry import ENGINES, engine_of
from faultline.experiment.config import Configuration
from faultline.installation.java import find_java
from faultline.installation.kafka import HEAP_MB, HEAP_OPTIONS
from faultline.installation.software import hashes, versions
from faultline.lifecycle.build_checkout import Build
from faultline.lifecycle.machine import machine_facts
from faultline.system.endpoints import EMBEDDED
from faultline.system.errors import ConfigError
from faultline.system.hashes import cached_hash
from faultline.system.settings import Settings, load_settings
from generators.data_files import data_files
from generators.send_progress import InputError


def describe_environment(
    settings: Settings, config: Configuration, java: str, build: Build | None = None
) -> dict[str, Any]:
    """Return the record's `environment`.

    `java`: version text of the Java runtime of engine and broker. `build`: the build under test; None for the installed
    programs and settings.
    """
    cores = os.cpu_count() or 1
    alternate, is_external = None, config.target != EMBEDDED
    with contextlib.suppress(ConfigError):  # an unreadable list is reported by the refusal
        alternate = engine_of(config).alternate_build(settings, config)
    known = versions(settings, java)
    if is_external:
        del known["kafka"]
    return {
        "host": socket.gethostname(),
        "cores": cores,
        "memory_mb": psutil.virtual_memory().total // 2**20,
        "oversubscribed": config.executors * config.executor_cores > cores,
        "versions": {**known, **({"build": alternate[0]} if alternate else {})},
        "git_commit": git_commit(settings.root),
        # The key keeps the name of the first engine.
        "spark_conf": {**(build.spec.settings if build else {}), **engine_of(config).settings(config)},
        "build_spec": build.as_environment() if build else None,
        # The settings of a target's broker are unknown.
        "kafka_conf": None if is_external else kafka_conf(settings),
        **machine_facts(),
        "jvm": jvms(settings, config),
        "hashes": {
            **hashes(settings),
            **{_short(name, config): digest for name, digest in job_hashes([config]).items()},
        },
    }


def _short(path: str, config: Configuration) -> str:
    """Return the name of a user's file, relative to the folder of the job or program if it is in there."""
    program = getattr(config, "job", None) or getattr(config, "application", None)
    folder = Path(program).parent if program else None
    if folder is not None and Path(path).is_relative_to(folder):
        return Path(path).relative_to(folder).as_posix()
    return Path(path).name


def jvms(settings: Settings, config: Configuration) -> dict[str, dict[str, Any]]:
    """Return the JVM options of each role: the engine's own and the broker's."""
    # A new archive replaces older ones.
    archived = any(settings.cds_folder.glob("classes-*.jsa"))
    broker = {"kafka": {"options": list(HEAP_OPTIONS), "heap_mb": HEAP_MB}} if config.target == EMBEDDED else {}
    return {**engine_of(config).jvms(config, with_archive=archived), **broker}


def job_hashes(configurations: Iterable[Configuration]) -> dict[str, str]:
    """Return the SHA-256 of each user file that the configurations run or replay, by path.

    Empty for built-in workloads on built-in texts. Missing files are left out; `prepare` reports them.
    """
    files: dict[str, Path] = {}
    builds: dict[str, str] = {}
    for config in configurations:
        with contextlib.suppress(ConfigError):
            files |= {str(path): path for path in config.kind.files(config.own).values()}
        with contextlib.suppress(ConfigError):
            if (alternate := engine_of(config).alternate_build(load_settings(), config)) is not None:
                builds |= {f"build {alternate[0]}": alternate[1]}
        if config.data is not None:
            with contextlib.suppress(InputError):
                files |= {str(path): path for path in data_files(config.data)}
    return {name: cached_hash(path) for name, path in sorted(files.items())} | builds


def default_build(
    settings: Settings, java: str, build: Build | None = None, *, job: Mapping[str, str] | None = None
) -> str:
    """Return the label of the software under test, 10 hex digits.

    The label is a hash of engine versions, settings and workload programs: those of the default engine, or of the
    `build` under test. A build with the same programs and without settings of its own gets the same label. `job`:
    hashes of a user job, which is also under test.
    """
    build_settings = dict(sorted(build.spec.settings.items())) if build else {}
    installed, default = versions(settings, java), ENGINES.default
    engine_versions = {name: installed[name] for name in (*default.packages, "kafka", "java")}
    content = json.dumps(
        [
            engine_versions,
            default.build_settings() | build_settings,
            kafka_conf(settings),
            default.program_hashes(build.programs if build else settings.root / str(default.programs)),
            *([job] if job else []),
        ],
        sort_keys=True,
    )
    return hashlib.sha256(content.encode()).hexdigest()[:10]


def installed_build(
    settings: Settings, build: Build | None = None, configurations: Iterable[Configuration] = ()
) -> str:
    """Return the label that an experiment of these configurations gets here.

    `build`: the build under test; None for the installed one. Raises ConfigError without a usable Java.
    """
    return default_build(
        settings, find_java(settings.home / "java.json").version, build, job=job_hashes(configurations)
    )


def kafka_conf(settings: Settings) -> dict[str, str]:
    """Return the broker's settings, without ports, folders and passwords of this installation."""
    file = settings.home / "kafka" / "server.properties"
    if not file.exists():
        return {}
    pairs = (line.partition("=") for line in file.read_text().splitlines() if line)
    left_out = ("listeners", "bootstrap.servers", "log.dirs", "log.dir", "jaas.config")
    return {key: value for key, _, value in pairs if not key.endswith(left_out)}


@functools.cache
def git_commit(root: Path) -> str | None:
    """Return the commit of the checkout, with `-dirty` if files differ; None outside a checkout."""
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
