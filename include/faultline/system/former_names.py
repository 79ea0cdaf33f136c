"""Names of commands, options and environment variables up to version 0.1, which are still accepted."""

from __future__ import annotations

import os
from collections.abc import Sequence

from faultline.system.text import progress

COMMANDS = {
    "install": ("airflow", "install"),
    "uninstall": ("airflow", "uninstall"),
    "record": ("export-topic",),
    "conductor": ("up", "--no-airflow", "--foreground"),
}
OPTIONS = {
    ("demo",): {"--again": "--rerun"},
    ("sweep",): {"--again": "--rerun"},
    ("judge",): {"--again": "--write"},
    ("target", "add"): {"--own": "--own-connections", "--kafka-of": "--share-kafka"},
    ("service", "install"): {"--conductor": "--external-airflow"},
}
VARIABLES = {
    "FAULTLINE_PASS": "FAULTLINE_JOB_ENV",
    "FAULTLINE_OPEN": "FAULTLINE_NO_AUTH",
    "FAULTLINE_QUIET_S": "FAULTLINE_STEAL_WAIT_S",
    "FAULTLINE_NIGHTS": "FAULTLINE_NIGHTLY_DIR",
}


def adopt_renamed_variables() -> None:
    """Set each renamed variable from its former name, with one warning line, unless the new name is set."""
    former = [old for old, new in VARIABLES.items() if old in os.environ and new not in os.environ]
    for old in former:
        os.environ[VARIABLES[old]] = os.environ[old]
    if former:
        progress("environment: renamed variables; use " + ", ".join(f"{VARIABLES[old]} for {old}" for old in former))


def current_words(words: Sequence[str]) -> list[str]:
    """Return the words of a command line with the current names."""
    words = [*COMMANDS.get(words[0], words[:1]), *words[1:]] if words else []
    for command, options in OPTIONS.items():
        if tuple(words[: len(command)]) == command:
            return [_current_word(word, options) for word in words]
    return words


def _current_word(word: str, options: dict[str, str]) -> str:
    name, equals, value = word.partition("=")
    return f"{options.get(name, name)}{equals}{value}"
