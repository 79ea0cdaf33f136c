"""Build under test: workload programs of a revision, and engine settings in addition to the experiment's own."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from faultline.experiment.named_settings import setting_text
from faultline.system.errors import ConfigError
from faultline.system.text import require_keys

EXAMPLE = '{"revision": "v1.3", "settings": {"spark.sql.adaptive.enabled": "false"}}'
# Digits of a commit hash in texts and folder names.
COMMIT_DIGITS = 12
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class BuildSpec:
    """Build under test; the installed build if both fields are empty.

    `revision`: git revision of the programs, None for the checkout. `settings`: engine settings by name, as text.
    """

    revision: str | None = None
    settings: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def installed(self) -> bool:
        """Whether it is the installed build."""
        return self.revision is None and not self.settings

    def as_mapping(self) -> dict[str, Any]:
        """Return JSON values for `parse_build`."""
        return {"revision": self.revision, "settings": dict(self.settings)}

    @property
    def text(self) -> str:
        """Short description, such as `v1.3 with spark.x=1`."""
        settings = [f"{name}={value}" for name, value in sorted(self.settings.items())]
        revision = self.revision or "the checkout"
        label = revision[:COMMIT_DIGITS] if _COMMIT.fullmatch(revision) else revision
        return " with ".join([label, *([", ".join(settings)] if settings else [])])


def parse_build(given: Any, key: str) -> BuildSpec:
    """Return the build in the form field `key`, an object or its JSON; the installed build if it is empty.

    Raises ConfigError with one line that names the key.
    """
    if isinstance(given, str):
        given = given.strip() or None
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError as error:
            raise ConfigError(f"{key}: got invalid JSON ({error}); expected an object such as {EXAMPLE}") from None
    if not isinstance(given or {}, Mapping):
        raise ConfigError(f"{key}: got {given!r}; expected an object such as {EXAMPLE}")
    values = dict(given or {})
    require_keys(f"{key}.", values, ("revision", "settings"))
    settings = values.get("settings") or {}
    if not isinstance(settings, Mapping):
        raise ConfigError(f"{key}.settings: got {settings!r}; expected an object, as in {EXAMPLE}")
    parsed = {str(name): _text(f"{key}.settings.{name}", value) for name, value in settings.items()}
    return BuildSpec(_revision(values.get("revision"), f"{key}.revision"), MappingProxyType(parsed))


def _revision(given: Any, key: str) -> str | None:
    if given is None or given == "":
        return None
    # Git would read a leading dash as an option.
    if not isinstance(given, str) or given.startswith("-") or not given.isprintable() or " " in given:
        raise ConfigError(f"{key}: got {given!r}; expected a tag, branch or commit of the checkout")
    return given


def _text(where: str, value: Any) -> str:
    try:
        return setting_text(where, value)
    except ValueError as error:
        raise ConfigError(str(error)) from None
