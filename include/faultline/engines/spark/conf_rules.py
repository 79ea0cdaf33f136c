"""Rules for `spark_conf` and `jvm_options`: settings that users may vary, and reserved ones.

If a setting follows from a parameter, the rejection names the parameter; if evidence depends on it, the rejection gives
the reason. For names that Spark knows, the type of the value is checked (`known_settings.json`, written by
scripts/spark_settings.py from the installed Spark). An unknown name is rejected if it resembles a known one; any other
is accepted, because a listener, connector or extension may read it.
"""

from __future__ import annotations

import difflib
import functools
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from faultline.experiment.config import Configuration, parse_configuration
from faultline.experiment.named_settings import JVM_OPTIONS
from faultline.system.errors import ConfigError
from faultline.system.process_tags import RUN_MARK
from faultline.system.text import suggest
from generators.kafka_credentials import CREDENTIALS_ENV

KNOWN_SETTINGS_FILE = Path(__file__).with_name("known_settings.json")
SPARK_CONF = "spark_conf"
PREFIX = "spark."
# Settings of Faultline's programs. BUSY adds CPU time per record, in microseconds: a known slowdown that tests the
# regression gate.
FAULTLINE_PREFIX = "spark.faultline."
BUSY = f"{FAULTLINE_PREFIX}busy_us_per_record"
# Similarity from which a name counts as misspelled.
MIN_SIMILARITY = 0.92
CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
# Settings that commit_mode aligned-changelog sets; in other modes users may vary them.
_CHANGELOG_SETTINGS = frozenset({
    CHANGELOG, "spark.sql.streaming.stateStore.minDeltasForSnapshot",
    "spark.sql.streaming.stateStore.maintenanceInterval",
})  # fmt: skip
# Parameter that determines the setting.
_PARAMETER_OF: Mapping[str, str] = {
    "spark.cores.max": "executors and executor_cores", "spark.executor.cores": "executor_cores",
    "spark.executor.instances": "executors", "spark.executor.memory": "executor_memory_mb",
    "spark.sql.shuffle.partitions": "shuffle_partitions",
    "spark.sql.streaming.internal.stateStore.partitions": "shuffle_partitions",
    "spark.sql.streaming.stateStore.providerClass": "state_store",
    "spark.sql.streaming.realTimeMode.allowlistCheck": "commit_mode",
    "spark.driver.extraJavaOptions": "jvm_options", "spark.driver.defaultJavaOptions": "jvm_options",
    "spark.executor.extraJavaOptions": "jvm_options", "spark.executor.defaultJavaOptions": "jvm_options",
}  # fmt: skip
_ADDRESS = "processes and pages are identified by it"
_LOGS = "evidence is read from the logs"
_CLASSES = "it locates the Kafka connector"
_COLLECTIONS = "pauses are read from the GC logs"
_ARCHIVES = "JVMs start from a CDS archive"
_SUBMIT = "spark-submit has its own option for it"
# Reserved settings, with the reason.
RESERVED: Mapping[str, str] = {
    "spark.master": _SUBMIT, "spark.app.name": _SUBMIT, "spark.submit.deployMode": _SUBMIT, "spark.app.id": _SUBMIT,
    "spark.driver.host": _ADDRESS, "spark.driver.bindAddress": _ADDRESS, "spark.driver.port": _ADDRESS,
    "spark.ui.port": _ADDRESS, "spark.ui.enabled": _ADDRESS, "spark.ui.retainedJobs": _ADDRESS,
    "spark.local.dir": "temporary files of an attempt are removed by it",
    "spark.log.level": _LOGS, "spark.log.structuredLogging.enabled": _LOGS, "spark.driver.log.layout": _LOGS,
    "spark.driver.extraClassPath": _CLASSES, "spark.executor.extraClassPath": _CLASSES, "spark.jars": _CLASSES,
    "spark.jars.packages": _CLASSES, "spark.archives": _CLASSES,
    "spark.executorEnv.PYTHONPATH": "it locates the programs",
    f"spark.executorEnv.{CREDENTIALS_ENV}": "executors log in to the broker with it",
    f"spark.executorEnv.{RUN_MARK}": "processes of an attempt are identified by it",
    "spark.sql.session.timeZone": "times are compared in UTC",
    "spark.sql.streaming.minBatchesToRetain": "batch offsets are evidence and must not be purged before the harvest",
    "spark.sql.streaming.checkpointLocation": "the harvest reads the checkpoint from this location",
    "spark.dynamicAllocation.enabled": "a fault targets the number of executors given by `executors`",
}  # fmt: skip
# Prefixes of access-control settings.
_ACCESS_CONTROL = (
    "spark.authenticate", "spark.network.crypto.", "spark.ui.killEnabled", "spark.ui.threadDumpsEnabled",
    "spark.ui.heapHistogramEnabled", "spark.master.ui.decommission",
)  # fmt: skip
ROLES = ("driver", "executors")
# Prefixes of reserved JVM options, with the parameter that sets them or the reason.
_RESERVED_OPTIONS: Mapping[str, str] = {
    "-Xmx": "executor_memory_mb, or spark_conf.spark.driver.memory", "-Xms": "executor_memory_mb",
    "-Dlog4j": _LOGS, "-Djava.io.tmpdir": "temporary files of an attempt are removed by it",
    "-XX:SharedArchiveFile": _ARCHIVES, "-Xshare": _ARCHIVES, "-Xlog:gc": _COLLECTIONS, "-Xloggc": _COLLECTIONS,
    "-Dfaultline.": "processes of an attempt are identified by it",
    "-Djava.security.auth.login.config": "it selects the login to the broker",
}  # fmt: skip
_SIZE = re.compile(r"\d+(\.\d+)?\s*(b|[kmgtp]i?b?)?", re.IGNORECASE)
_TIME = re.compile(r"-?\d+\s*(us|ms|s|m|min|h|d)?", re.IGNORECASE)
_VALUE_PATTERNS = {
    "true or false": re.compile(r"true|false", re.IGNORECASE),
    "a whole number": re.compile(r"-?\d+"),
    "a number": re.compile(r"-?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"),
    "a time, such as 10s": _TIME,
    "a size, such as 64m": _SIZE,
}


def check_conf(config: Configuration) -> None:
    """Raise ConfigError that names a setting or option that cannot be set, and the fix."""
    for name, value in (config.spark_conf or {}).items():
        _check_setting(config, name, value)
    for role, options in (config.jvm_options or {}).items():
        _check_options(role, options)


def reserved_settings() -> dict[str, str]:
    """Return the settings that a job or program must not set itself, each with the fix."""
    # Spark rewrites addresses, class paths and JVM options, so their values cannot be compared.
    by_parameter = {name: f"and set {key}" for name, key in _PARAMETER_OF.items() if key != JVM_OPTIONS}
    return by_parameter | {name: f"because {why}" for name, why in RESERVED.items() if why not in (_ADDRESS, _CLASSES)}


def check_settings(settings: Mapping[str, str], key: str) -> None:
    """Raise ConfigError for reserved settings in the configuration of a Spark build."""
    for name, value in settings.items():
        _check_setting(parse_configuration({}), name, value, key)


def _check_setting(config: Configuration, name: str, value: str, key: str = SPARK_CONF) -> None:
    where = f"{key}.{name}"
    if not name.startswith(PREFIX):
        raise ConfigError(f"{where}: expected a Spark setting, with the prefix {PREFIX}")
    if name.startswith(FAULTLINE_PREFIX):
        raise ConfigError(f"{where}: not a Spark setting; fix: set it in build_spec")
    if name in _PARAMETER_OF:
        raise ConfigError(f"{where}: determined by {_PARAMETER_OF[name]}; fix: set that instead")
    if name in _CHANGELOG_SETTINGS and config.commit_mode == "aligned-changelog":
        raise ConfigError(
            f"{where}: determined by commit_mode aligned-changelog; fix: use commit_mode aligned to vary it"
        )
    if name in RESERVED:
        raise ConfigError(f"{where}: reserved, because {RESERVED[name]}; fix: remove it")
    if name.startswith(_ACCESS_CONTROL):
        raise ConfigError(f"{where}: reserved, because it controls access; fix: remove it")
    kinds = known_settings()
    if name not in kinds:
        near = difflib.get_close_matches(name, kinds, 1, MIN_SIMILARITY)
        if near:
            raise ConfigError(f"{where}: unknown setting; did you mean {near[0]}?")
        return
    pattern = _VALUE_PATTERNS.get(kinds[name])
    if pattern is not None and not pattern.fullmatch(value):
        raise ConfigError(f"{where}: got {value!r}; expected {kinds[name]}")


def _check_options(role: str, options: str) -> None:
    where = f"{JVM_OPTIONS}.{role}"
    if role not in ROLES:
        raise ConfigError(f"{where}: unknown JVM{suggest(role, ROLES)}")
    for option in options.split():
        if not option.startswith("-"):
            raise ConfigError(f"{where}: got {option!r}; expected JVM options that start with - and contain no spaces")
        own = next((why for start, why in _RESERVED_OPTIONS.items() if option.startswith(start)), None)
        if own is not None:
            raise ConfigError(f"{where}: {option} is reserved: {own}")


@functools.cache
def known_settings() -> Mapping[str, str]:
    """Return the settings that the installed Spark documents, with the type of their values."""
    found: dict[str, str] = json.loads(KNOWN_SETTINGS_FILE.read_text(encoding="utf-8"))["settings"]
    return found


def megabytes(size: str) -> int | None:
    """Return a JVM heap size in MiB, its default unit; None if it is invalid."""
    found = re.fullmatch(r"(\d+)\s*([bkmgt]?)i?b?", size.strip(), re.IGNORECASE)
    if found is None:
        return None
    power = {"b": -2, "k": -1, "m": 0, "": 0, "g": 1, "t": 2}[found[2].lower()]
    return int(int(found[1]) * 1024.0**power)


def with_spark_conf(settings: Mapping[str, str], config: Configuration) -> dict[str, str]:
    """Return the settings of an experiment, overridden by its `spark_conf`."""
    return {**settings, **(config.spark_conf or {})}


def jvm_options_of(config: Configuration, role: str) -> Iterable[str]:
    """Return the user's options for the JVMs of a role."""
    return str((config.jvm_options or {}).get(role, "")).split()
