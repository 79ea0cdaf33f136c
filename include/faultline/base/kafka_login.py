"""How a process of this installation logs in at its broker; elsewhere it comes as anybody."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from faultline.base.secrets import HARNESS, MECHANISM, PROTOCOL, WORKLOAD, login_file, require_private
from faultline.base.settings import INSTANCE, Settings, load_settings
from generators.login import read_login


def kafka_client(
    bootstrap: str, more: Mapping[str, Any] | None = None, *, secrets: Path | None = None, user: str = HARNESS
) -> dict[str, Any]:
    """Settings of a librdkafka client. `secrets`: the folder of the installation whose broker it is; by default this
    one's, where the address is. `more`: further ones. Raises ConfigError when the login is missing, or others can read
    it."""
    if secrets is None:
        settings = load_settings()
        own = settings.endpoints
        secrets = settings.secrets if bootstrap in (own.kafka, own.kafka_detour) else None
    login = {} if secrets is None else _login(secrets, user)
    return {"bootstrap.servers": bootstrap, **login, **(more or {})}


def kafka_options(settings: Settings) -> dict[str, str]:
    """Options of Spark's Kafka source and sink beside the address, in a JVM that was told with what to log in. Raises
    ConfigError as `kafka_client`."""
    if not _login(settings.secrets, WORKLOAD):
        return {}
    return {"kafka.security.protocol": PROTOCOL, "kafka.sasl.mechanism": MECHANISM}


def _login(secrets: Path, user: str) -> dict[str, str]:
    file = login_file(secrets, user)
    # Where no `up` is in force, there is no broker of ours.
    if not file.exists() and not (secrets.parent / INSTANCE).exists():
        return {}
    require_private(file)
    return read_login(file)
