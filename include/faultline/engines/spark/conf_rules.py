"""Which settings of Spark and options of its JVMs somebody may vary, and which the measuring owns.

A setting that follows from a parameter is refused with the parameter's name; one that evidence hangs on, with the
reason. Names that Spark knows come with the kind of their values (`known_settings.json`, written by
scripts/spark_settings.py from the installed Spark); a name that it does not know is refused where it is all but one
that it does, and else left to whoever reads it: a listener, a connector, an extension.
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
# Settings that Spark has not, but the programs of Faultline read. This one plants work: microseconds of a core that are
# burnt for each record, so that it can be seen what a gate makes of a slowdown of known size.
FAULTLINE_PREFIX = "spark.faultline."
BUSY = f"{FAULTLINE_PREFIX}busy_us_per_record"
# How much of a name must be alike to be taken for a slip.
MIN_SIMILARITY = 0.92
CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
# Of commit_mode aligned-changelog, which sets them; without it they may be varied.
_CHANGELOG_SETTINGS = frozenset({
    CHANGELOG, "spark.sql.streaming.stateStore.minDeltasForSnapshot",
    "spark.sql.streaming.stateStore.maintenanceInterval",
})  # fmt: skip
# By the parameter that sets it.
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
_ADDRESS = "the measuring knows processes and pages by it"
_LOGS = "what happened is read from the logs"
_CLASSES = "the connector to Kafka is found by it"
_COLLECTIONS = "pauses are read from the logs of collections"
_ARCHIVES = "JVMs start from an archive of classes"
_SUBMIT = "spark-submit is told it by an option of its own"
# Settings that stay as they are, and why.
RESERVED: Mapping[str, str] = {
    "spark.master": _SUBMIT, "spark.app.name": _SUBMIT, "spark.submit.deployMode": _SUBMIT, "spark.app.id": _SUBMIT,
    "spark.driver.host": _ADDRESS, "spark.driver.bindAddress": _ADDRESS, "spark.driver.port": _ADDRESS,
    "spark.ui.port": _ADDRESS, "spark.ui.enabled": _ADDRESS, "spark.ui.retainedJobs": _ADDRESS,
    "spark.local.dir": "what an attempt leaves behind is removed with it",
    "spark.log.level": _LOGS, "spark.log.structuredLogging.enabled": _LOGS, "spark.driver.log.layout": _LOGS,
    "spark.driver.extraClassPath": _CLASSES, "spark.executor.extraClassPath": _CLASSES, "spark.jars": _CLASSES,
    "spark.jars.packages": _CLASSES, "spark.archives": _CLASSES,
    "spark.executorEnv.PYTHONPATH": "the programs are found by it",
    f"spark.executorEnv.{CREDENTIALS_ENV}": "executors log in at the broker with it",
    f"spark.executorEnv.{RUN_MARK}": "processes of an attempt are found by it",
    "spark.sql.session.timeZone": "times are compared in UTC",
    "spark.sql.streaming.minBatchesToRetain": "ends of batches are evidence, and none may be purged before it is read",
    "spark.sql.streaming.checkpointLocation": "the harvest reads the checkpoint where it knows it to be",
    "spark.dynamicAllocation.enabled": "a fault aims at as many executors as `executors` says",
}  # fmt: skip
# Strangers are kept out by settings that begin so.
_ACCESS_CONTROL = (
    "spark.authenticate", "spark.network.crypto.", "spark.ui.killEnabled", "spark.ui.threadDumpsEnabled",
    "spark.ui.heapHistogramEnabled", "spark.master.ui.decommission",
)  # fmt: skip
ROLES = ("driver", "executors")
# Beginnings of JVM options that are not to be given, with what sets them or why.
_RESERVED_OPTIONS: Mapping[str, str] = {
    "-Xmx": "executor_memory_mb, or spark_conf.spark.driver.memory", "-Xms": "executor_memory_mb",
    "-Dlog4j": _LOGS, "-Djava.io.tmpdir": "what an attempt leaves behind is removed with it",
    "-XX:SharedArchiveFile": _ARCHIVES, "-Xshare": _ARCHIVES, "-Xlog:gc": _COLLECTIONS, "-Xloggc": _COLLECTIONS,
    "-Dfaultline.": "processes of an attempt are found by it",
    "-Djava.security.auth.login.config": "it logs in at the broker",
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
    """Raises ConfigError naming a setting or an option that cannot be given, and the remedy."""
    for name, value in (config.spark_conf or {}).items():
        _check_setting(config, name, value)
    for role, options in (config.jvm_options or {}).items():
        _check_options(role, options)


def reserved_settings() -> dict[str, str]:
    """What a job or program must not set itself, each with what to do instead."""
    # Spark writes addresses, class paths and options of JVMs in a form of its own.
    by_parameter = {name: f"and set {key}" for name, key in _PARAMETER_OF.items() if key != JVM_OPTIONS}
    return by_parameter | {name: f"because {why}" for name, why in RESERVED.items() if why not in (_ADDRESS, _CLASSES)}


def check_settings(settings: Mapping[str, str], key: str) -> None:
    """Raises ConfigError for settings that belong to a build of Spark, and that the measuring owns."""
    for name, value in settings.items():
        _check_setting(parse_configuration({}), name, value, key)


def _check_setting(config: Configuration, name: str, value: str, key: str = SPARK_CONF) -> None:
    where = f"{key}.{name}"
    if not name.startswith(PREFIX):
        raise ConfigError(f"{where}: does not begin with {PREFIX}; give settings of Spark")
    if name.startswith(FAULTLINE_PREFIX):
        raise ConfigError(f"{where}: is no setting of Spark; give it in build_spec, where benchmarks do")
    if name in _PARAMETER_OF:
        raise ConfigError(f"{where}: follows from {_PARAMETER_OF[name]}; set that")
    if name in _CHANGELOG_SETTINGS and config.commit_mode == "aligned-changelog":
        raise ConfigError(f"{where}: follows from commit_mode aligned-changelog; use aligned to vary it")
    if name in RESERVED:
        raise ConfigError(f"{where}: stays as it is, because {RESERVED[name]}; leave it out")
    if name.startswith(_ACCESS_CONTROL):
        raise ConfigError(f"{where}: stays as it is, because strangers are kept out by it; leave it out")
    kinds = known_settings()
    if name not in kinds:
        near = difflib.get_close_matches(name, kinds, 1, MIN_SIMILARITY)
        if near:
            raise ConfigError(f"{where}: Spark has no such setting; did you mean {near[0]}?")
        return
    pattern = _VALUE_PATTERNS.get(kinds[name])
    if pattern is not None and not pattern.fullmatch(value):
        raise ConfigError(f"{where}: {value!r} is not {kinds[name]}; give one")


def _check_options(role: str, options: str) -> None:
    where = f"{JVM_OPTIONS}.{role}"
    if role not in ROLES:
        raise ConfigError(f"{where}: no JVM of that name{suggest(role, ROLES)}")
    for option in options.split():
        if not option.startswith("-"):
            raise ConfigError(f"{where}: {option!r} is no option of a JVM; options begin with -, and hold no spaces")
        own = next((why for start, why in _RESERVED_OPTIONS.items() if option.startswith(start)), None)
        if own is not None:
            raise ConfigError(f"{where}: {option} is not to be given: {own}")


@functools.cache
def known_settings() -> Mapping[str, str]:
    """What the installed Spark documents: the kind of values by name."""
    found: dict[str, str] = json.loads(KNOWN_SETTINGS_FILE.read_text(encoding="utf-8"))["settings"]
    return found


def megabytes(size: str) -> int | None:
    """A size as Spark takes a heap's, in MiB; None for what is none. Without a unit it is in MiB."""
    found = re.fullmatch(r"(\d+)\s*([bkmgt]?)i?b?", size.strip(), re.IGNORECASE)
    if found is None:
        return None
    power = {"b": -2, "k": -1, "m": 0, "": 0, "g": 1, "t": 2}[found[2].lower()]
    return int(int(found[1]) * 1024.0**power)


def with_spark_conf(settings: Mapping[str, str], config: Configuration) -> dict[str, str]:
    """Settings of an experiment with those that its configuration names in their place."""
    return {**settings, **(config.spark_conf or {})}


def jvm_options_of(config: Configuration, role: str) -> Iterable[str]:
    """Further options of a role's JVMs."""
    return str((config.jvm_options or {}).get(role, "")).split()
