"""Credential files of a target, written from its Connections into one folder readable by this user only.

They have the names of the embedded services' files, so that their readers work with any target.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from faultline.engines.spark.settings import READ_ONLY_UI, properties_file
from faultline.installation.targets.connection_specs import (
    ConnectionSpec,
    SparkConnectionSpec,
    digest,
    parse_host,
    parse_login,
    parse_spark,
    parse_storage,
)
from faultline.installation.targets.java_kafka import CA, KEYSTORE, JavaKafka
from faultline.system.endpoints import Endpoints
from faultline.system.errors import ConfigError
from faultline.system.files import write_private
from faultline.system.secrets import HARNESS, WORKLOAD, jaas_file, login_file, make_private, options_file, properties
from faultline.system.settings import ENDPOINTS, Settings, targets_folder
from faultline.system.ssh_hosts import check_ssh_host
from faultline.system.target_registry import Target, load_targets, target_folder, write_endpoints

# Digests of the Connections when the credential files were written, and at the last successful preflight.
SPECS_DIGEST, CHECKED_DIGEST = "said.sha256", "checked.sha256"


def write_target(settings: Settings, target: Target, specs: Mapping[str, ConnectionSpec]) -> Endpoints:
    """Write the credential files of a target's Connections and return its endpoints.

    Raises ConfigError naming Connection, key and fix; earlier files then stay.
    """
    bootstrap, login, java = parse_login(specs[target.kafka])
    spark = parse_spark(specs[target.spark])
    storage, storage_web = parse_storage(specs[target.storage])
    _require_unique_address(settings, target, bootstrap)
    make_private(targets_folder(settings.home))
    folder = target_folder(settings, target.name)
    make_private(folder)
    hosts = {name: _host(folder, name, specs[target.host(name)]) for name in target.hosts}
    _write_kafka(folder, login, java)
    endpoints = Endpoints(
        kafka=bootstrap,
        kafka_detoured="",
        kafka_detour="",
        engine=spark.master,
        engine_ui=spark.ui,
        airflow=settings.endpoints.airflow,
        hosts=hosts,
        here=spark.here,
        target=target.name,
        logins=str(folder),
        storage=storage,
        storage_web=storage_web,
    )
    write_private(properties_file(settings.for_target(endpoints)), _spark_properties(spark))
    write_private(folder / SPECS_DIGEST, digest(specs))
    write_endpoints(settings, endpoints)
    _remove_stale_files(folder, java, hosts)
    return endpoints


def _require_unique_address(settings: Settings, target: Target, bootstrap: str) -> None:
    """Raise ConfigError if another target has this address: credentials are also looked up by address."""
    for other in load_targets(settings).values():
        file = target_folder(settings, other.name) / ENDPOINTS
        if other.kafka == target.kafka or other.name == target.name or not file.exists():
            continue
        if json.loads(file.read_text())["kafka"] == bootstrap:
            raise ConfigError(
                f"Connection {target.kafka}: {bootstrap} is also the broker of {other.kafka} (target {other.name}); "
                f"fix: ./faultline target remove {target.name}, then add it with --share-kafka {other.name}"
            )


def _write_kafka(folder: Path, login: Mapping[str, str], java: JavaKafka) -> None:
    """Write the files for librdkafka and Java; a target has one user for everything."""
    for name, content in java.files.items():
        write_private(folder / name, content)
    options = {name: value.replace("{folder}", str(folder)) for name, value in java.options.items()}
    write_private(options_file(folder), json.dumps(options))
    for user in (HARNESS, WORKLOAD):
        write_private(login_file(folder, user), json.dumps(dict(login)))
        # JVMs are always configured with this file, even if the broker needs no password.
        write_private(jaas_file(folder, user), java.jaas or "")


def _remove_stale_files(folder: Path, java: JavaKafka, hosts: Mapping[str, Mapping[str, object]]) -> None:
    """Remove keys and certificates that no Connection of the target contains."""
    current = {*(str(folder / name) for name in java.files), *(str(host["key_file"]) for host in hosts.values())}
    for file in (folder / CA, folder / KEYSTORE, *folder.glob(_key_file("*"))):
        if str(file) not in current:
            file.unlink(missing_ok=True)


def _spark_properties(spark: SparkConnectionSpec) -> str:
    authentication = (
        {"spark.authenticate": "true", "spark.authenticate.secret": escape_property(spark.secret)}
        if spark.secret
        else {}
    )
    configured = {name: escape_property(value) for name, value in spark.conf.items()}
    return properties({**READ_ONLY_UI, **configured, **authentication})


def escape_property(value: str) -> str:
    """Return a value in the syntax of Java properties files."""
    return value.replace("\\", "\\\\").replace("\n", "\\n")


def _key_file(name: str) -> str:
    return f"host_{name}.key"


def _host(folder: Path, name: str, spec: ConnectionSpec) -> dict[str, object]:
    """Return an SSH host, after writing its key if the Connection contains it."""
    values = parse_host(spec)
    if key := values.pop("private_key", None):
        file = folder / _key_file(name)
        write_private(file, str(key).rstrip("\n") + "\n")
        values["key_file"] = str(file)
    return check_ssh_host(f"Connection {spec.id}", values)
