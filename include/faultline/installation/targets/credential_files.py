"""Writes what programs log in with at a target, as its Connections say: files for this user only, in one folder.

They are those that the embedded services have among the secrets, by the same names, so whoever logs in need not know
whose cluster it is.
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

# What the Connections said when the logins were written, and when all was found well.
SPECS_DIGEST, CHECKED_DIGEST = "said.sha256", "checked.sha256"


def write_target(settings: Settings, target: Target, specs: Mapping[str, ConnectionSpec]) -> Endpoints:
    """Takes in what its Connections say, by their ids; returns where it is reached.

    Raises ConfigError naming Connection, key and remedy; what was written before stays then.
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
    """Whoever only knows an address looks for its login by that."""
    for other in load_targets(settings).values():
        file = target_folder(settings, other.name) / ENDPOINTS
        if other.kafka == target.kafka or other.name == target.name or not file.exists():
            continue
        if json.loads(file.read_text())["kafka"] == bootstrap:
            raise ConfigError(
                f"Connection {target.kafka}: {bootstrap} is reached by {other.kafka}, too, for {other.name}; "
                f"./faultline target remove {target.name}, and add it with --share-kafka {other.name}"
            )


def _write_kafka(folder: Path, login: Mapping[str, str], java: JavaKafka) -> None:
    """For librdkafka and for Java; one user does all at a target."""
    for name, content in java.files.items():
        write_private(folder / name, content)
    options = {name: value.replace("{folder}", str(folder)) for name, value in java.options.items()}
    write_private(options_file(folder), json.dumps(options))
    for user in (HARNESS, WORKLOAD):
        write_private(login_file(folder, user), json.dumps(dict(login)))
        # JVMs are configured of the file in any case.
        write_private(jaas_file(folder, user), java.jaas or "")


def _remove_stale_files(folder: Path, java: JavaKafka, hosts: Mapping[str, Mapping[str, object]]) -> None:
    """Removes keys and certificates that no Connection of the target holds any more."""
    held = {*(str(folder / name) for name in java.files), *(str(host["key_file"]) for host in hosts.values())}
    for file in (folder / CA, folder / KEYSTORE, *folder.glob(_key_file("*"))):
        if str(file) not in held:
            file.unlink(missing_ok=True)


def _spark_properties(spark: SparkConnectionSpec) -> str:
    closed = (
        {"spark.authenticate": "true", "spark.authenticate.secret": escape_property(spark.secret)}
        if spark.secret
        else {}
    )
    configured = {name: escape_property(value) for name, value in spark.conf.items()}
    return properties({**READ_ONLY_UI, **configured, **closed})


def escape_property(value: str) -> str:
    """A value of a Java properties file."""
    return value.replace("\\", "\\\\").replace("\n", "\\n")


def _key_file(name: str) -> str:
    return f"host_{name}.key"


def _host(folder: Path, name: str, spec: ConnectionSpec) -> dict[str, object]:
    """How a host is reached; its key lies in the folder where the Connection holds it."""
    values = parse_host(spec)
    if key := values.pop("private_key", None):
        file = folder / _key_file(name)
        write_private(file, str(key).rstrip("\n") + "\n")
        values["key_file"] = str(file)
    return check_ssh_host(f"Connection {spec.id}", values)
