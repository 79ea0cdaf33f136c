"""What a measurement ran on and with: host, versions, settings, and the build that follows from them."""

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
    """The record's `environment`. `java` is the version text of the runtime that engine and broker use, `build` what is
    under test in place of the installed programs and settings."""
    cores = os.cpu_count() or 1
    another, elsewhere = None, config.target != EMBEDDED
    with contextlib.suppress(ConfigError):  # of a list that cannot be read: the refusal says so
        another = engine_of(config).alternate_build(settings, config)
    known = versions(settings, java)
    if elsewhere:
        del known["kafka"]
    return {
        "host": socket.gethostname(),
        "cores": cores,
        "memory_mb": psutil.virtual_memory().total // 2**20,
        "oversubscribed": config.executors * config.executor_cores > cores,
        "versions": {**known, **({"build": another[0]} if another else {})},
        "git_commit": git_commit(settings.root),
        # Named after the first engine that there was.
        "spark_conf": {**(build.spec.settings if build else {}), **engine_of(config).settings(config)},
        "build_spec": build.as_environment() if build else None,
        # Of a target's broker only its Connection is known.
        "kafka_conf": None if elsewhere else kafka_conf(settings),
        **machine_facts(),
        "jvm": jvms(settings, config),
        "hashes": {**hashes(settings), **{_short(name, config): said for name, said in job_hashes([config]).items()}},
    }


def _short(path: str, config: Configuration) -> str:
    """The name of a user's file: within the folder of the job or program, else its last part."""
    program = getattr(config, "job", None) or getattr(config, "application", None)
    folder = Path(program).parent if program else None
    if folder is not None and Path(path).is_relative_to(folder):
        return Path(path).relative_to(folder).as_posix()
    return Path(path).name


def jvms(settings: Settings, config: Configuration) -> dict[str, dict[str, Any]]:
    """How the JVMs of each role are started: what the engine says of its own, and the broker."""
    # Whoever makes an archive of classes removes those of before.
    archived = any(settings.cds_folder.glob("classes-*.jsa"))
    broker = {"kafka": {"options": list(HEAP_OPTIONS), "heap_mb": HEAP_MB}} if config.target == EMBEDDED else {}
    return {**engine_of(config).jvms(config, with_archive=archived), **broker}


def job_hashes(configurations: Iterable[Configuration]) -> dict[str, str]:
    """SHA-256 of each file of the user's that the configurations run or replay, by its path; of built-in workloads on
    built-in texts there is none.

    A file that is not there has none: whoever prepares an experiment says so.
    """
    files: dict[str, Path] = {}
    builds: dict[str, str] = {}
    for config in configurations:
        with contextlib.suppress(ConfigError):
            files |= {str(path): path for path in config.kind.files(config.own).values()}
        with contextlib.suppress(ConfigError):
            if (another := engine_of(config).alternate_build(load_settings(), config)) is not None:
                builds |= {f"build {another[0]}": another[1]}
        if config.data is not None:
            with contextlib.suppress(InputError):
                files |= {str(path): path for path in data_files(config.data)}
    return {name: cached_hash(path) for name, path in sorted(files.items())} | builds


def default_build(
    settings: Settings, java: str, build: Build | None = None, *, job: Mapping[str, str] | None = None
) -> str:
    """Label of the software under test: a hash of engine versions, settings and workload programs, 10 hex digits.

    It is the installation's: of the engine that runs what no other has for itself; or that of a `build` under test,
    which has the same label where it has the same programs and no settings of its own. `job`: the hashes of a job of
    the user's, which is under test as the programs are.
    """
    own = dict(sorted(build.spec.settings.items())) if build else {}
    known, usual = versions(settings, java), ENGINES.default
    engine = {name: known[name] for name in (*usual.packages, "kafka", "java")}
    content = json.dumps(
        [
            engine,
            usual.build_settings() | own,
            kafka_conf(settings),
            usual.program_hashes(build.programs if build else settings.root / str(usual.programs)),
            *([job] if job else []),
        ],
        sort_keys=True,
    )
    return hashlib.sha256(content.encode()).hexdigest()[:10]


def installed_build(
    settings: Settings, build: Build | None = None, configurations: Iterable[Configuration] = ()
) -> str:
    """The label that an experiment of these configurations would get here, of a `build` under test or of what is
    installed.

    Raises ConfigError when there is no usable Java.
    """
    return default_build(
        settings, find_java(settings.home / "java.json").version, build, job=job_hashes(configurations)
    )


def kafka_conf(settings: Settings) -> dict[str, str]:
    """The broker's settings, without those that name ports and folders of one installation, or hold a password."""
    file = settings.home / "kafka" / "server.properties"
    if not file.exists():
        return {}
    pairs = (line.partition("=") for line in file.read_text().splitlines() if line)
    left_out = ("listeners", "bootstrap.servers", "log.dirs", "log.dir", "jaas.config")
    return {key: value for key, _, value in pairs if not key.endswith(left_out)}


@functools.cache
def git_commit(root: Path) -> str | None:
    """Commit of the checkout, with `-dirty` when files differ from it; None outside a checkout."""
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
