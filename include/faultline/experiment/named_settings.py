"""Parameters with settings by name: `spark_conf`, `flink_conf`, `topic_conf`, `jvm_options` and `arguments`.

A dotted name selects one setting, such as `spark_conf.spark.sql.adaptive.enabled`: on the command line, in the set of a
nightly run, or as an axis. The engine checks names and rejects settings that the measurement needs to set.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from fault.fault_spec import RULES
from faultline.system.errors import ConfigError
from faultline.system.text import suggest

TOPIC_CONF, JVM_OPTIONS = "topic_conf", "jvm_options"
# Arguments of a user job.
ARGUMENTS = "arguments"
# Parameters with settings by name, each with an example.
OBJECTS = {
    "spark_conf": '{"spark.sql.adaptive.enabled": "false"}',
    "flink_conf": '{"heartbeat.interval": "1s", "heartbeat.timeout": "5s"}',
    TOPIC_CONF: '{"compression.type": "lz4"}',
    JVM_OPTIONS: '{"executors": "-XX:+UseZGC"}',
    ARGUMENTS: '{"window_s": "10"}',
}
MOST_CHARACTERS = 2_000


def split_name(name: str) -> tuple[str, str] | None:
    """Return object and setting of a dotted name; None for any other name."""
    key, dot, setting = name.partition(".")
    return (key, setting) if dot and key in OBJECTS else None


def is_setting(name: str) -> bool:
    """Return whether a name selects one setting, such as `spark_conf.spark.x`."""
    return split_name(name) is not None


def fold_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with dotted names moved into their objects.

    Raises ConfigError if a setting has two values, or if its object is not a mapping.
    """
    found = {name: value for name, value in values.items() if not is_setting(name)}
    for name, value in values.items():
        if (parts := split_name(name)) is None:
            continue
        key, setting = parts
        settings = found.get(key)
        if settings is None or settings == "":
            settings = {}
        if not isinstance(settings, Mapping):
            raise ConfigError(
                f"{key}: got a value and settings by name; expected an object such as {OBJECTS[key]}; fix: remove one"
            )
        if setting in settings and settings[setting] != value:
            raise ConfigError(f"{name}: got two values; fix: remove one")
        found[key] = {**settings, setting: value}
    return found


def spread_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with each setting under its dotted name."""
    found = {name: value for name, value in config.items() if name not in OBJECTS}
    for key in OBJECTS:
        settings = config.get(key)
        if isinstance(settings, Mapping):
            found |= {f"{key}.{setting}": value for setting, value in settings.items()}
    return found


def take_settings(key: str, given: Mapping[str, Any] | None) -> dict[str, str] | None:
    """Return settings in canonical form: sorted, values as texts; None if empty.

    Raises ValueError naming the setting and the fix.
    """
    if not given:
        return None
    return {str(name): setting_text(f"{key}.{name}", value) for name, value in sorted(given.items())}


def setting_text(where: str, value: Any) -> str:
    """Return a setting's value as text. Raises ValueError naming `where` and the fix."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str | int | float) or not str(value).strip() or not str(value).isprintable():
        raise ValueError(f"{where}: got {value!r}; expected a text on one line or a number")
    if len(str(value)) > MOST_CHARACTERS:
        raise ValueError(f"{where}: got {len(str(value))} characters; expected at most {MOST_CHARACTERS}")
    return str(value).strip()


def require_known(name: str, known: Iterable[str]) -> None:
    """Raise ConfigError for a name that is neither in `known` nor the dotted name of a setting."""
    names = list(known)
    if name in RULES and name not in names:
        raise ConfigError(
            f'{name}: got a parameter of a planned fault; fix: set it in fault_plan={{"faults": [{{…, "{name}": …}}]}}'
        )
    if name not in names and not is_setting(name):
        raise ConfigError(f"{name}: unknown parameter{suggest(name, names)}")


# Topic settings that may be varied, and those that the measurement fixes.


_WHOLE = re.compile(r"-?\d+")
WHOLE, SWITCH, TEXT = "a whole number", "true or false", "a text"
KINDS: Mapping[str, str] = {
    "compression.gzip.level": WHOLE, "compression.lz4.level": WHOLE, "compression.type": TEXT,
    "compression.zstd.level": WHOLE, "file.delete.delay.ms": WHOLE, "flush.messages": WHOLE, "flush.ms": WHOLE,
    "index.interval.bytes": WHOLE, "max.message.bytes": WHOLE, "min.insync.replicas": WHOLE, "preallocate": SWITCH,
    "segment.bytes": WHOLE, "segment.index.bytes": WHOLE, "segment.jitter.ms": WHOLE, "segment.ms": WHOLE,
    "unclean.leader.election.enable": SWITCH,
}  # fmt: skip
_KEPT = "records must remain until the harvest"
# Fixed settings, each with the reason.
OWNED: Mapping[str, str] = {
    "message.timestamp.type": "the record time is the intended send time",
    "message.timestamp.before.max.ms": "a late generator sends records with past times",
    "message.timestamp.after.max.ms": "records are sent slightly before their times",
    "retention.ms": _KEPT, "retention.bytes": _KEPT, "cleanup.policy": _KEPT, "delete.retention.ms": _KEPT,
    "max.compaction.lag.ms": _KEPT, "min.compaction.lag.ms": _KEPT, "min.cleanable.dirty.ratio": _KEPT,
    "local.retention.ms": _KEPT, "local.retention.bytes": _KEPT, "remote.storage.enable": _KEPT,
}  # fmt: skip


def check_topic_settings(settings: Mapping[str, str] | None, *, paced: bool, workload: str) -> None:
    """Raise ValueError naming a setting that is fixed, unknown or of a wrong type."""
    if not settings:
        return
    if not paced:
        raise ValueError(f"topic_conf: unsupported by {workload}, whose input does not use Kafka; fix: remove it")
    for name, value in settings.items():
        where = f"topic_conf.{name}"
        if name in OWNED:
            raise ValueError(f"{where}: fixed, because {OWNED[name]}; fix: remove it")
        if name not in KINDS:
            raise ValueError(f"{where}: unknown topic setting{suggest(name, KINDS)}")
        if not _fits(value, KINDS[name]):
            raise ValueError(f"{where}: got {value!r}; expected {KINDS[name]}")


def _fits(value: str, kind: str) -> bool:
    if kind == SWITCH:
        return value in ("true", "false")
    return kind == TEXT or bool(_WHOLE.fullmatch(value))
