"""Spark's programs and settings for the workloads and for the harvest."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from faultline.engines.spark.conf_rules import RESERVED, jvm_options_of, megabytes, with_spark_conf
from faultline.engines.spark.distributions import Distribution
from faultline.engines.spark.gc_log import DRIVER_FILE, EXECUTOR_FILE, gc_option
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
# What Spark asks of whoever connects to one of its processes, and how they talk then.
AUTHENTICATION = {
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.authEngineVersion": "2",
    "spark.network.crypto.cipher": "AES/GCM/NoPadding",
    "spark.network.crypto.saslFallback": "false",
}
# Its pages are open to everybody on the machine: they change nothing, and make no JVM work.
READ_ONLY_UI = {
    "spark.ui.killEnabled": "false",
    "spark.ui.threadDumpsEnabled": "false",
    "spark.ui.heapHistogramEnabled": "false",
    "spark.master.ui.decommission.allow.mode": "DENY",
}
# Where harvest and aggregate run: short batch jobs, done in one JVM before executors would be up.
LOCAL_MASTER = "local[2]"
# Beyond the batches of the measured time: the primer's, those of a drain of ten minutes, and a margin.
EXTRA_BATCHES = 800
# A batch without any work takes longer: planning, and two files to sync.
MIN_BATCH_S = 0.1


def engine_settings() -> dict[str, str]:
    """Settings that are the same for every configuration of the workloads."""
    return {
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        "spark.driver.memory": f"{DRIVER_MEMORY_MB}m",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.showConsoleProgress": "false",
        # The driver plans while the executors start; the program itself waits for all of them.
        "spark.scheduler.minRegisteredResourcesRatio": "0.0",
    }


def build_settings() -> dict[str, str]:
    """What the label of a build hangs on: records under other settings than these are never averaged with others."""
    return {**engine_settings(), **NEXMARK_SETTINGS, **({} if is_auth_disabled(load_settings()) else AUTHENTICATION)}


def configured_settings(config: Configuration) -> dict[str, str]:
    """Settings that follow from the configuration."""
    changelog = config.commit_mode == "aligned-changelog"
    checkpoint_interval_s = config.checkpoint_interval_s if config.paced else MIN_BATCH_S
    batches = math.ceil(config.longest_s / checkpoint_interval_s)
    settings = {
        "spark.cores.max": str(config.executors * config.executor_cores),
        "spark.executor.cores": str(config.executor_cores),
        "spark.executor.memory": f"{config.executor_memory_mb}m",
        "spark.sql.shuffle.partitions": str(config.shuffle_partitions),
        # The batch boundaries are evidence: none of the measured run may be purged before the harvest.
        "spark.sql.streaming.minBatchesToRetain": str(batches + EXTRA_BATCHES),
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": str(changelog).lower(),
    }
    if config.state_store == "memory":
        settings["spark.sql.streaming.stateStore.providerClass"] = MEMORY
    settings |= workload_tuning(config)
    if changelog:
        # Batches without a schedule have no interval to count with: the maintenance's own makes the snapshots.
        deltas = max(1, round(config.snapshot_interval_s / config.checkpoint_interval_s)) if config.paced else 1
        settings["spark.sql.streaming.stateStore.minDeltasForSnapshot"] = str(deltas)
        settings["spark.sql.streaming.stateStore.maintenanceInterval"] = f"{round(config.snapshot_interval_s * 1000)}ms"
    if config.commit_mode == "unaligned" and config.kind.can("stateful"):
        # Spark 4.2 lists no operator with state for real-time mode; it runs them, but their outputs wait for the batch.
        settings["spark.sql.streaming.realTimeMode.allowlistCheck"] = "false"
    return settings


def experiment_settings(config: Configuration) -> dict[str, str]:
    """Settings of the workload that hang on no place or installation, with those that the configuration names."""
    return with_spark_conf({**engine_settings(), **configured_settings(config)}, config)


def properties_file(settings: Settings) -> Path:
    """What every Spark process is told by a file, since everybody can read command lines."""
    return settings.logins / "spark.conf"


def properties_text(secret: str, *, is_open: bool) -> str:
    """The content of that file. `is_open`: whoever comes is let in."""
    closed = {} if is_open else {**AUTHENTICATION, "spark.authenticate.secret": secret}
    return properties({**READ_ONLY_UI, **closed})


def driver_settings(address: str) -> dict[str, str]:
    """The driver listens where its executors reach it and nowhere else: on loopback, when they are on this machine."""
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
    """Everything the workload's spark-submit is told with --conf, but for what only a build under test has.

    `archive`: of loaded classes. `programs`: the folder of the build's; by default this project's. `own`: the Spark
    that runs it, where that is not the installed one. `shared`: the attempt's folder on a target; see `shared`.
    """
    # The attempt's id in an executor's command line is what the guard rails look for.
    classes = None if archive is None else str(archive)
    login, scratch = str(jaas_file(settings.logins, WORKLOAD)), attempt.scratch if shared is None else shared / SCRATCH
    options = java_options(config, run_option(attempt.id), logging_option(settings), str(scratch), login, classes)
    if shared is not None:
        usual = (logging_option(settings), gc_option(EXECUTOR_FILE))
        kept = [one for one in options[EXECUTORS] if one not in usual]
        options[EXECUTORS] = [*kept, *executor_options(shared)]
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
    """Names of what `workload_settings` tells a workload, and of what stays as it is whoever asks."""
    nowhere = Path("/")
    told = workload_settings(Settings(nowhere, nowhere, nowhere), Attempt(nowhere / "attempt"), config, 0)
    return frozenset({*told, *build_settings(), *AUTHENTICATION, *READ_ONLY_UI, *RESERVED})


def java_options(
    config: Configuration, mark: str, logging: str, scratch: str, login: str, archive: str | None
) -> dict[str, list[str]]:
    """The options of the workload's JVMs by role. They are alike in every experiment but for those that its
    configuration adds, and for these five: the option that marks the attempt's processes, the one that names the
    logging settings, a folder, the file to log in at the broker with, and an archive of classes.
    """
    shared = [mark, logging, f"{_TEMP_OPTION}{scratch}", f"{_LOGIN_OPTION}{login}"]
    shared += [] if archive is None else [f"{_ARCHIVE_OPTION}{archive}"]
    logs = {DRIVER: gc_option(DRIVER_FILE), EXECUTORS: gc_option(EXECUTOR_FILE)}
    return {role: [*shared, log, *jvm_options_of(config, role)] for role, log in logs.items()}


def jvms(config: Configuration, *, with_archive: bool) -> dict[str, dict[str, Any]]:
    """What a record says of the workload's JVMs, by role: options with names in place of paths, and the heap."""
    classes = "CLASSES" if with_archive else None
    options = java_options(config, run_option("ATTEMPT"), f"{_LOGGING_OPTION}FILE", "SCRATCH", "FILE", classes)
    driver = megabytes((config.spark_conf or {}).get("spark.driver.memory", f"{DRIVER_MEMORY_MB}m"))
    heap_mb = {DRIVER: driver, EXECUTORS: config.executor_memory_mb}
    return {role: {"options": options[role], "heap_mb": heap_mb[role]} for role in (DRIVER, EXECUTORS)}


def _quoted(option: str) -> str:
    """As Spark splits options, which is at spaces; a path may have some."""
    return f'"{option}"' if option.startswith(_PATH_OPTIONS) else option


def logging_option(settings: Settings) -> str:
    """The JVM option that names the logging settings; as a URI, since Spark splits options at spaces."""
    return f"{_LOGGING_OPTION}{settings.spark_logging.as_uri()}"


def archive_option(archive: Path | None) -> str:
    """The JVM option that starts from an archive of loaded classes, quoted as Spark splits options; empty for none."""
    return _quoted(f"{_ARCHIVE_OPTION}{archive}") if archive else ""


def batch_settings(
    settings: Settings, *, archive: Path | None = None, large: bool = False, attempt: str | None = None
) -> dict[str, str]:
    """Settings of harvest and aggregate; unless `large`, neither adaptive plans nor the optimising compiler.

    A job for an `attempt` bears its mark, so that whoever closes the attempt finds it when its task was killed.
    """
    # Tasks of large jobs take memory in pages of 32 MB, for which a heap in regions finds no place in the end.
    options = ["-XX:+UseParallelGC"] if large else ["-XX:TieredStopAtLevel=1"]
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
        "spark.sql.adaptive.enabled": str(large).lower(),
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": " ".join(filter(None, options)),
    }


def spark_environment(
    settings: Settings, java_home: Path, programs: Path | None = None, own: Distribution | None = None
) -> dict[str, str]:
    """Environment of every spark-submit: the Java at `java_home`, and the folder `programs`; by default this one's.

    `own`: the Spark that is submitted to, where that is not the installed one.
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
        # Processes of Python that plan a stream for the driver get no --py-files: they import from where programs lie.
        "PYTHONPATH": str(programs or settings.root / PROGRAMS),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        CREDENTIALS_ENV: str(login_file(settings.logins, WORKLOAD)),
    }


def kafka_classes(settings: Settings) -> dict[str, str]:
    """Settings that put Spark's Kafka connector on the class path of every JVM.

    Not --jars: what a Spark process fetches when it runs is loaded in a way that no archive of classes can hold, and
    reading topics takes more than a thousand classes.
    """
    path = os.pathsep.join(str(jar) for jar in kafka_jars(settings))
    return {"spark.driver.extraClassPath": path, "spark.executor.extraClassPath": path}


def kafka_jars(settings: Settings) -> list[Path]:
    """The jars of Spark's Kafka connector, where they really lie: installations may share them, and then an archive."""
    return sorted((settings.jars / "spark-kafka").resolve().glob("*.jar"))


def workload_program(programs: Path, config: Configuration) -> Path:
    """The Spark program of the configuration's workload, which must have one, in the folder of a build's programs."""
    name = config.kind.program
    assert name is not None, config.workload
    return programs / f"{name}.py"


def program(settings: Settings, name: str) -> Path:
    """The Spark program `name` of this project."""
    return settings.root / PROGRAMS / f"{name}.py"


# Settings of Spark that only some workloads have, by the workload's name.


# Java compiles no method of more than 8,000 bytes of code, and making events would be one: above the limit Spark takes
# smaller ones. Sessions of one partition of the input are merged before they are sent to where their state is, and what
# goes to Python goes in pieces that are worth a call.
NEXMARK_SETTINGS = {
    "spark.sql.codegen.hugeMethodLimit": "8000",
    "spark.sql.streaming.sessionWindow.merge.sessions.in.local.partition": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    # Counting rows costs a look-up for each that is written, and no figure of Nexmark is a number of rows.
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
}


def workload_tuning(config: Configuration) -> Mapping[str, str]:
    """What Spark is told for this workload beside what it is for every one."""
    tuned = _TUNINGS.get(config.workload)
    return {} if tuned is None else tuned(config)


def _nexmark(config: Configuration) -> Mapping[str, str]:
    return NEXMARK_SETTINGS


def _topology(config: Configuration) -> Mapping[str, str]:
    own = config.own
    assert isinstance(own, TopologyParameters)
    settings = {"spark.scheduler.mode": "FAIR"}  # tasks of all stages take turns
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
