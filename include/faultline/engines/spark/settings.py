"""Programs and settings of Spark for workloads, harvest and aggregate."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from faultline.engines.gc_log import DRIVER_FILE, EXECUTOR_FILE, gc_option
from faultline.engines.spark.conf_rules import RESERVED, jvm_options_of, megabytes, with_spark_conf
from faultline.engines.spark.distributions import Distribution
from faultline.engines.spark.shared_storage import PROGRAMS, SCRATCH, executor_options
from faultline.experiment.attempt import Attempt
from faultline.experiment.config import Configuration
from faultline.experiment.workloads.topology_rules import (
    DYNAMIC_ALLOCATION,
    TopologyParameters,
    first_executors,
    mechanisms_of,
)
from faultline.system.process_tags import run_option
from faultline.system.secrets import HARNESS, WORKLOAD, jaas_file, login_file, properties
from faultline.system.settings import HOST, Settings, is_auth_disabled, load_settings
from generators.kafka_credentials import CREDENTIALS_ENV

_STATE = "org.apache.spark.sql.execution.streaming.state"
ROCKSDB = f"{_STATE}.RocksDBStateStoreProvider"
MEMORY = f"{_STATE}.HDFSBackedStateStoreProvider"
DRIVER_MEMORY_MB = 768
# Roles of the workload's JVMs.
DRIVER, EXECUTORS = "driver", "executors"
_LOGGING_OPTION, _TEMP_OPTION, _ARCHIVE_OPTION = (
    "-Dlog4j2.configurationFile=",
    "-Djava.io.tmpdir=",
    "-XX:SharedArchiveFile=",
)
_LOGIN_OPTION = "-Djava.security.auth.login.config="
_PATH_OPTIONS = (_TEMP_OPTION, _ARCHIVE_OPTION, _LOGIN_OPTION)
# Authentication and encryption of connections to Spark processes.
AUTHENTICATION = {
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.authEngineVersion": "2",
    "spark.network.crypto.cipher": "AES/GCM/NoPadding",
    "spark.network.crypto.saslFallback": "false",
}
# Any user of the machine can open Spark's web pages, so they offer no actions and no costly requests.
READ_ONLY_UI = {
    "spark.ui.killEnabled": "false",
    "spark.ui.threadDumpsEnabled": "false",
    "spark.ui.heapHistogramEnabled": "false",
    "spark.master.ui.decommission.allow.mode": "DENY",
}
# Harvest and aggregate are short and run in one JVM, which starts faster than executors.
LOCAL_MASTER = "local[2]"
# Batches in addition to the measured ones: preload, a drain of ten minutes, and a margin.
EXTRA_BATCHES = 800
# Lower bound of an empty batch: planning and two file syncs.
MIN_BATCH_S = 0.1


def engine_settings() -> dict[str, str]:
    """Return the settings common to all configurations."""
    return {
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        "spark.driver.memory": f"{DRIVER_MEMORY_MB}m",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.showConsoleProgress": "false",
        # The driver plans while executors start; the program waits for all of them.
        "spark.scheduler.minRegisteredResourcesRatio": "0.0",
    }


def build_settings() -> dict[str, str]:
    """Return the settings that are part of a build label; records with different labels are never averaged."""
    return {**engine_settings(), **NEXMARK_SETTINGS, **({} if is_auth_disabled(load_settings()) else AUTHENTICATION)}


def configured_settings(config: Configuration) -> dict[str, str]:
    """Return the settings that follow from the configuration."""
    changelog = config.commit_mode == "aligned-changelog"
    checkpoint_interval_s = config.checkpoint_interval_s if config.paced else MIN_BATCH_S
    batches = math.ceil(config.longest_s / checkpoint_interval_s)
    settings = {
        "spark.cores.max": str(config.executors * config.executor_cores),
        "spark.executor.cores": str(config.executor_cores),
        "spark.executor.memory": f"{config.executor_memory_mb}m",
        "spark.sql.shuffle.partitions": str(config.shuffle_partitions),
        # Batch offsets are evidence and must not be purged before the harvest.
        "spark.sql.streaming.minBatchesToRetain": str(batches + EXTRA_BATCHES),
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": str(changelog).lower(),
    }
    if config.state_store == "memory":
        settings["spark.sql.streaming.stateStore.providerClass"] = MEMORY
    settings |= workload_tuning(config)
    if changelog:
        # Without a schedule there is no batch interval, so the maintenance interval determines snapshots.
        deltas = max(1, round(config.snapshot_interval_s / config.checkpoint_interval_s)) if config.paced else 1
        settings["spark.sql.streaming.stateStore.minDeltasForSnapshot"] = str(deltas)
        settings["spark.sql.streaming.stateStore.maintenanceInterval"] = f"{round(config.snapshot_interval_s * 1000)}ms"
    if config.commit_mode == "unaligned" and config.kind.can("stateful"):
        # Spark 4.2 does not allow-list stateful operators for real-time mode; they run, with output per batch.
        settings["spark.sql.streaming.realTimeMode.allowlistCheck"] = "false"
    return settings


def experiment_settings(config: Configuration) -> dict[str, str]:
    """Return the workload's settings that are independent of the installation, with the user's."""
    return with_spark_conf({**engine_settings(), **configured_settings(config)}, config)


def properties_file(settings: Settings) -> Path:
    """Return the file with secret settings of every Spark process; all users can read command lines."""
    return settings.logins / "spark.conf"


def properties_text(secret: str, *, is_open: bool) -> str:
    """Return the content of the properties file. `is_open`: authentication is disabled."""
    closed = {} if is_open else {**AUTHENTICATION, "spark.authenticate.secret": secret}
    return properties({**READ_ONLY_UI, **closed})


def driver_settings(address: str) -> dict[str, str]:
    """Return the driver's address settings; it listens only where its executors connect."""
    return {"spark.driver.host": address, "spark.driver.bindAddress": address}


def workload_settings(
    settings: Settings,
    attempt: Attempt,
    config: Configuration,
    ui_port: int,
    *,
    archive: Path | None = None,
    programs: Path | None = None,
    own: Distribution | None = None,
    shared: Path | None = None,
) -> dict[str, str]:
    """Return all `--conf` settings of the workload, except those of a build under test.

    `archive`: the CDS archive. `programs`: the folder of the build's programs; None: this checkout's. `own`: the Spark
    build; None: the installed one. `shared`: the attempt's folder on a target; see `shared_storage`.
    """
    # The victim guard looks for the attempt's id in an executor's command line.
    classes = None if archive is None else str(archive)
    login, scratch = str(jaas_file(settings.logins, WORKLOAD)), attempt.scratch if shared is None else shared / SCRATCH
    options = java_options(config, run_option(attempt.id), logging_option(settings), str(scratch), login, classes)
    if shared is not None:
        local_logs = (logging_option(settings), gc_option(EXECUTOR_FILE))
        others = [one for one in options[EXECUTORS] if one not in local_logs]
        options[EXECUTORS] = [*others, *executor_options(shared)]
    return {
        **(own.conf if own else {}),
        **experiment_settings(config),
        **driver_settings(settings.endpoints.here),
        **({} if own and own.has_connector else kafka_classes(settings)),
        "spark.ui.port": str(ui_port),
        "spark.executorEnv.PYTHONPATH": str(programs or settings.root / PROGRAMS),
        f"spark.executorEnv.{CREDENTIALS_ENV}": str(login_file(settings.logins, WORKLOAD)),
        "spark.driver.extraJavaOptions": " ".join(map(_quoted, options[DRIVER])),
        "spark.executor.extraJavaOptions": " ".join(map(_quoted, options[EXECUTORS])),
    }


def reserved_names(config: Configuration) -> frozenset[str]:
    """Return the names of the settings of `workload_settings` and of reserved settings."""
    root = Path("/")
    settings = workload_settings(Settings(root, root, root), Attempt(root / "attempt"), config, 0)
    return frozenset({*settings, *build_settings(), *AUTHENTICATION, *READ_ONLY_UI, *RESERVED})


def java_options(
    config: Configuration, mark: str, logging: str, scratch: str, login: str, archive: str | None
) -> dict[str, list[str]]:
    """Return the options of the workload's JVMs by role.

    They are equal in every experiment, except for configured options and five values: process tag (`mark`), logging
    configuration, temporary folder, login file, and CDS archive.
    """
    shared = [mark, logging, f"{_TEMP_OPTION}{scratch}", f"{_LOGIN_OPTION}{login}"]
    shared += [] if archive is None else [f"{_ARCHIVE_OPTION}{archive}"]
    logs = {DRIVER: gc_option(DRIVER_FILE), EXECUTORS: gc_option(EXECUTOR_FILE)}
    return {role: [*shared, log, *jvm_options_of(config, role)] for role, log in logs.items()}


def jvms(config: Configuration, *, with_archive: bool) -> dict[str, dict[str, Any]]:
    """Return the record's description of the workload's JVMs by role: options with placeholders, and heap size."""
    classes = "CLASSES" if with_archive else None
    options = java_options(config, run_option("ATTEMPT"), f"{_LOGGING_OPTION}FILE", "SCRATCH", "FILE", classes)
    driver = megabytes((config.spark_conf or {}).get("spark.driver.memory", f"{DRIVER_MEMORY_MB}m"))
    heap_mb = {DRIVER: driver, EXECUTORS: config.executor_memory_mb}
    return {role: {"options": options[role], "heap_mb": heap_mb[role]} for role in (DRIVER, EXECUTORS)}


def _quoted(option: str) -> str:
    """Quote options with paths, because Spark splits options at spaces."""
    return f'"{option}"' if option.startswith(_PATH_OPTIONS) else option


def logging_option(settings: Settings) -> str:
    """Return the JVM option for the logging configuration, as a URI without spaces."""
    return f"{_LOGGING_OPTION}{settings.spark_logging.as_uri()}"


def archive_option(archive: Path | None) -> str:
    """Return the quoted JVM option for a CDS archive; empty for None."""
    return _quoted(f"{_ARCHIVE_OPTION}{archive}") if archive else ""


def batch_settings(settings: Settings, *, archive: Path | None = None, attempt: str | None = None) -> dict[str, str]:
    """Return the settings of harvest and aggregate.

    A job of an `attempt` bears its process tag, so that teardown finds it if its task was killed.
    """
    # Tasks of large jobs allocate pages of 32 MB, which fragment the region-based heap of G1 too much.
    options = ["-XX:+UseParallelGC"]
    options += [run_option(attempt)] if attempt else []
    options += [logging_option(settings), archive_option(archive)]
    options += [_quoted(f"{_LOGIN_OPTION}{jaas_file(settings.logins, HARNESS)}")]
    return {
        **driver_settings(HOST),
        **kafka_classes(settings),
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": " ".join(filter(None, options)),
    }


def spark_environment(
    settings: Settings, java_home: Path, programs: Path | None = None, own: Distribution | None = None
) -> dict[str, str]:
    """Return the environment of every spark-submit, with the Java at `java_home`.

    `programs`: the folder of the programs; None: this checkout's. `own`: the Spark build; None: the installed one.
    """
    if own is not None:
        usual = spark_environment(settings, own.java_home or java_home, programs)
        path = os.pathsep.join([usual["PYTHONPATH"], *map(str, own.python_path)])
        python = {"PYSPARK_PYTHON": own.python, "PYSPARK_DRIVER_PYTHON": own.python}
        return {**usual, "SPARK_HOME": str(own.spark_home), "PYTHONPATH": path, **python}
    return {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "JAVA_HOME": str(java_home),
        "SPARK_CONF_DIR": str(settings.spark_conf),
        "SPARK_LOCAL_IP": settings.endpoints.here,
        # Python processes that plan a stream get no --py-files, so they import from the programs' folder.
        "PYTHONPATH": str(programs or settings.root / PROGRAMS),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        CREDENTIALS_ENV: str(login_file(settings.logins, WORKLOAD)),
    }


def kafka_classes(settings: Settings) -> dict[str, str]:
    """Return the settings that add the Kafka connector to the class path of every JVM.

    `--jars` is not used: Spark fetches such jars at run time, so a CDS archive could not contain their more than one
    thousand classes.
    """
    path = os.pathsep.join(str(jar) for jar in kafka_jars(settings))
    return {"spark.driver.extraClassPath": path, "spark.executor.extraClassPath": path}


def kafka_jars(settings: Settings) -> list[Path]:
    """Return the jars of the Kafka connector with links resolved, so installations may share a CDS archive."""
    return sorted((settings.jars / "spark-kafka").resolve().glob("*.jar"))


def workload_program(programs: Path, config: Configuration) -> Path:
    """Return the Spark program of the configuration's workload in the folder of a build's programs."""
    name = config.kind.program
    assert name is not None, config.workload
    return programs / f"{name}.py"


def program(settings: Settings, name: str) -> Path:
    """Return the path of the Spark program `name` in this checkout."""
    return settings.root / PROGRAMS / f"{name}.py"


# HotSpot does not compile methods above 8,000 bytes of bytecode, so Spark splits the event generator at this limit.
# Merging sessions locally reduces the shuffle, and large Arrow batches reduce calls to Python.
NEXMARK_SETTINGS = {
    "spark.sql.codegen.hugeMethodLimit": "8000",
    "spark.sql.streaming.sessionWindow.merge.sessions.in.local.partition": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    # Counting rows costs a lookup per write, and no Nexmark result uses the count.
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
}


def workload_tuning(config: Configuration) -> Mapping[str, str]:
    """Return the settings specific to the workload."""
    tuning = _TUNINGS.get(config.workload)
    return {} if tuning is None else tuning(config)


def _nexmark(config: Configuration) -> Mapping[str, str]:
    return NEXMARK_SETTINGS


def _topology(config: Configuration) -> Mapping[str, str]:
    own = config.own
    assert isinstance(own, TopologyParameters)
    settings = {"spark.scheduler.mode": "FAIR"}  # interleave tasks of all stages
    if DYNAMIC_ALLOCATION in mechanisms_of(own):
        first = str(first_executors(own, config.executors))
        settings |= {
            "spark.dynamicAllocation.enabled": "true",
            "spark.dynamicAllocation.shuffleTracking.enabled": "true",
            "spark.dynamicAllocation.minExecutors": first,
            "spark.dynamicAllocation.initialExecutors": first,
            "spark.dynamicAllocation.maxExecutors": str(config.executors),
            "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
        }
    return settings


_TUNINGS: Mapping[str, Callable[[Configuration], Mapping[str, str]]] = {"nexmark": _nexmark, "topology": _topology}
