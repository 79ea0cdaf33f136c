"""How a process of this installation logs in at its broker or a target's; elsewhere it comes as anybody."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from faultline.system.secrets import HARNESS, MECHANISM, PROTOCOL, WORKLOAD, login_file, options_file, require_private
from faultline.system.settings import ENDPOINTS, INSTANCE, Settings, load_settings, targets_folder
from generators.login import read_login


def kafka_client(
    bootstrap: str, more: Mapping[str, Any] | None = None, *, secrets: Path | None = None, user: str = HARNESS
) -> dict[str, Any]:
    """Settings of a librdkafka client. `secrets`: the folder of what one logs in with there; by default this
    installation's, or that of its target with the address. `more`: further ones. Raises ConfigError when the login is
    missing, or others can read it."""
    if secrets is None:
        secrets = _whose(bootstrap)
    login = {} if secrets is None else _login(secrets, user)
    return {"bootstrap.servers": bootstrap, **login, **(more or {})}


def kafka_options(settings: Settings) -> dict[str, str]:
    """Options of Spark's Kafka source and sink beside the address, in a JVM that was told with what to log in: none of
    them is a secret. Raises ConfigError as `kafka_client`."""
    if settings.endpoints.elsewhere:
        file = options_file(settings.logins)
        require_private(file)
        return {f"kafka.{name}": value for name, value in json.loads(file.read_text()).items()}
    if not _login(settings.logins, WORKLOAD):
        return {}
    return {"kafka.security.protocol": PROTOCOL, "kafka.sasl.mechanism": MECHANISM}


def _whose(bootstrap: str) -> Path | None:
    settings = load_settings()
    if bootstrap in (settings.endpoints.kafka, settings.endpoints.kafka_detour):
        return settings.secrets
    for file in sorted(targets_folder(settings.home).glob(f"*/{ENDPOINTS}")):
        if json.loads(file.read_text())["kafka"] == bootstrap:
            return file.parent
    return None


def _login(secrets: Path, user: str) -> dict[str, str]:
    file = login_file(secrets, user)
    # Where no `up` is in force, there is no broker of ours.
    if not file.exists() and not (secrets.parent / INSTANCE).exists() and not (secrets / ENDPOINTS).exists():
        return {}
    require_private(file)
    return read_login(file)
