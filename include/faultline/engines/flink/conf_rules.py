"""Rules for `flink_conf`: settings that parameters determine, reserved settings and misspelled names."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from faultline.system.errors import ConfigError

# Names by `scripts/flink_settings.py`.
KNOWN_SETTINGS_FILE = Path(__file__).with_name("known_settings.json")
# A lower similarity would refuse settings of plugins.
MIN_SIMILARITY = 0.85
# Parameter by setting, or by prefix of settings.
_PARAMETER_OF: Mapping[str, str] = {
    "execution.checkpointing.interval": "checkpoint_interval_s",
    "execution.checkpointing.mode": "commit_mode",
    "execution.checkpointing.unaligned": "commit_mode",
    "execution.checkpointing.unaligned.enabled": "commit_mode",
    "parallelism.default": "executors and executor_cores",
    "state.backend.type": "state_store",
    "taskmanager.cpu.cores": "executor_cores",
    "taskmanager.memory.": "executor_memory_mb",
    "taskmanager.numberOfTaskSlots": "executor_cores",
}
_ADDRESS, _EVIDENCE, _FOLDER = (
    "it is an address of the attempt",
    "evidence depends on it",
    "it is a path of the attempt",
)
# Reason by setting, or by prefix of settings.
_RESERVED: Mapping[str, str] = {
    "blob.server.": _ADDRESS,
    "jobmanager.bind-host": _ADDRESS,
    "jobmanager.rpc.": _ADDRESS,
    "rest.": _ADDRESS,
    "taskmanager.bind-host": _ADDRESS,
    "taskmanager.host": _ADDRESS,
    "execution.checkpointing.dir": _FOLDER,
    "io.tmp.dirs": _FOLDER,
    "execution.checkpointing.externalized-checkpoint-retention": _EVIDENCE,
    "execution.checkpointing.num-retained": _EVIDENCE,
    "metrics.reporter.": _EVIDENCE,
    "metrics.reporters": _EVIDENCE,
    "table.local-time-zone": _EVIDENCE,
    "traces.": _EVIDENCE,
    "jobmanager.memory.": "the JVM options of the JobManager are fixed",
    "security.": "it controls access",
    "web.": "it controls access",
}


def check_conf(names: Iterable[str]) -> None:
    """Raise ConfigError for a setting of `flink_conf` that a run determines or reserves, or that is misspelled."""
    for name in names:
        where = f"flink_conf.{name}"
        if parameter := _entry(_PARAMETER_OF, name):
            raise ConfigError(f"{where}: determined by {parameter}; fix: set that instead")
        if reason := _entry(_RESERVED, name):
            raise ConfigError(f"{where}: reserved, because {reason}; fix: remove it")
        known = known_settings()
        near = [] if name in known else difflib.get_close_matches(name, known, 1, MIN_SIMILARITY)
        if near:
            raise ConfigError(f"{where}: unknown setting; did you mean {near[0]}?")


@cache
def known_settings() -> frozenset[str]:
    """Return the names of the settings that Flink declares."""
    return frozenset(json.loads(KNOWN_SETTINGS_FILE.read_text(encoding="utf-8"))["settings"])


def _entry(table: Mapping[str, str], name: str) -> str | None:
    """Return the entry of a name; a key that ends with a point is a prefix."""
    entries = (value for key, value in table.items() if name == key or (key.endswith(".") and name.startswith(key)))
    return next(entries, None)
