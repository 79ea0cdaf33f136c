"""The embedded Kafka broker, one process in KRaft mode, and topics of attempts."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from faultline.installation.hosts.layout import kafka_disk
from faultline.installation.spark import log4j, spark_home
from faultline.installation.supervisord import Service
from faultline.system.errors import InfrastructureError
from faultline.system.files import sync_tree, write_atomic, write_private
from faultline.system.kafka import kafka_client
from faultline.system.process_tags import instance_option
from faultline.system.secrets import (
    BROKER,
    HARNESS,
    MECHANISM,
    PROTOCOL,
    WORKLOAD,
    Secrets,
    make_secrets,
    properties,
    scram_module,
    write_logins,
    write_no_logins,
)
from faultline.system.settings import HOST, Settings, is_auth_disabled
from faultline.system.text import progress
from faultline.system.waiting import time_limit

LISTENERS = ("DIRECT", "CONTROLLER", "PROXIED", "GATED")
HEAP_MB = 512
HEAP_OPTIONS = ("-Xms384m", f"-Xmx{HEAP_MB}m")
LOG4J_KAFKA = log4j("SYSTEM_OUT", {"org.apache.kafka": "WARN"})


def kafka_service(settings: Settings, java: Path, instance: str) -> Service:
    """Return the broker's service; `instance`: the mark that identifies this installation's processes."""
    return Service(
        "kafka",
        [
            str(java),
            *HEAP_OPTIONS,
            instance_option(instance),
            f"-Dlog4j2.configurationFile={(settings.home / 'kafka' / 'log4j2.properties').as_uri()}",
            "-cp",
            kafka_classpath(settings),
            "kafka.Kafka",
            str(settings.home / "kafka" / "server.properties"),
        ],
        ready=lambda: kafka_ready(settings.endpoints.kafka, settings.secrets),
        victim=True,
        host=None if (host := settings.placement.host_of("kafka")) is None else host.name,
    )


def kafka_classpath(settings: Settings) -> str:
    """Return PySpark's logging jars and then the broker's jars, which lack a logger."""
    jars = spark_home() / "jars"
    names = ("slf4j-api-", "log4j-api-", "log4j-core-", "log4j-slf4j2-impl-")
    logging = [str(path) for path in sorted(jars.glob("*.jar")) if path.name.startswith(names)]
    return os.pathsep.join([*logging, str(settings.jars / "kafka" / "*")])


def prepare_kafka(settings: Settings, java: Path) -> None:
    """Write the broker's settings and format its storage once; keep existing data."""
    folder, store, metadata = settings.home / "kafka", _storage_folder(settings), _metadata_folder(settings)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "log4j2.properties").write_text(LOG4J_KAFKA)
    known = make_secrets(settings.secrets)
    ports = settings.ports
    controller = ports["kafka_controller"]
    # PROXIED advertises the fault proxy, GATED the auth proxy, so that clients reconnect through them.
    broker, this_host = settings.placement.address("kafka"), settings.placement.conductor
    direct = f"DIRECT://{broker}:{ports['kafka']},CONTROLLER://{HOST}:{controller}"
    listeners = f"{direct},PROXIED://{broker}:{ports['kafka_proxied']},GATED://{broker}:{ports['kafka_gated']}"
    advertised = f"{direct},PROXIED://{this_host}:{ports['kafka_proxy']},GATED://{this_host}:{ports['kafka_gate']}"
    values = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.bootstrap.servers": f"{HOST}:{controller}",
        "listeners": listeners,
        "advertised.listeners": advertised,
        "inter.broker.listener.name": "DIRECT",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(store / "data"),
        **({} if store == folder else {"metadata.log.dir": str(metadata)}),
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        "auto.create.topics.enable": "false",
        "log.retention.hours": "24",
        "log.message.timestamp.type": "CreateTime",
        **_access_settings(settings, known),
    }
    file = folder / "server.properties"
    write_private(file, properties(values))
    if store != folder and not metadata.exists():
        # Storage without metadata is unusable; without this file it is formatted again.
        (store / "users.sha256").unlink(missing_ok=True)
    if not _has_users(store, known):
        if metadata.exists():
            metadata.rename(folder / f"metadata-before-{time.time_ns()}")
        _format(settings, java, file, known, store)


def _access_settings(settings: Settings, known: Secrets) -> dict[str, str]:
    """Return the settings of authentication and authorization, and write the credential files."""
    protocol = "PLAINTEXT" if is_auth_disabled(settings) else PROTOCOL
    listeners = {"listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name in LISTENERS)}
    if is_auth_disabled(settings):
        write_no_logins(settings.secrets)
        return listeners
    write_logins(settings.secrets, known)
    jaas = scram_module(BROKER, known.kafka[BROKER])
    own = {f"listener.name.{name.lower()}.{MECHANISM.lower()}.sasl.jaas.config": jaas for name in LISTENERS}
    return {
        **listeners,
        **own,
        "sasl.enabled.mechanisms": MECHANISM,
        "sasl.mechanism.inter.broker.protocol": MECHANISM,
        "sasl.mechanism.controller.protocol": MECHANISM,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{BROKER};User:{HARNESS}",
        "allow.everyone.if.no.acl.found": "false",
    }


def _storage_folder(settings: Settings) -> Path:
    """Return the broker's storage folder: on its host's disk, if it has one."""
    if settings.placement.host_of("kafka") is None:
        return settings.home / "kafka"
    return kafka_disk(settings)


def _metadata_folder(settings: Settings) -> Path:
    """Return the metadata folder of a broker with a host.

    The folder is not on the host's disk: a broker that starts on a full disk empties its metadata.
    """
    return settings.home / "kafka" / "metadata"


def _has_users(folder: Path, known: Secrets) -> bool:
    """Return whether the storage was formatted completely with the current passwords.

    If not, move it aside: logins would fail, and its topics belong to single attempts.
    """
    marker, data = folder / "users.sha256", folder / "data"
    is_marked = marker.exists() and marker.read_text() == _digest(known)
    if is_marked and (data / "meta.properties").exists():
        return True
    if any(data.glob("*")):
        aside = folder / f"data-before-{time.time_ns()}"
        data.rename(aside)
        why = "has other passwords, or is incomplete"
        progress(f"kafka: moving the storage to {aside} ({why}); it may be deleted")
    return False


def _digest(known: Secrets) -> str:
    return hashlib.sha256(json.dumps(dict(known.kafka), sort_keys=True).encode()).hexdigest()


def _format(settings: Settings, java: Path, file: Path, known: Secrets, store: Path) -> None:
    """Format the storage with its users; the passwords are passed in a file, since command lines are public."""
    # The equals sign allows a random id that begins with a dash.
    arguments = ["-cp", kafka_classpath(settings), "kafka.tools.StorageTool", "format", f"--cluster-id={_cluster_id()}"]
    arguments += ["--standalone", "-c", str(file)]
    for user, password in known.kafka.items():
        arguments += ["--add-scram", f"{MECHANISM}=[name={user},password={password}]"]
    marker = store / "users.sha256"
    marker.unlink(missing_ok=True)
    arguments_file = settings.secrets / "format.arguments"
    write_private(arguments_file, "".join(f"{json.dumps(one)}\n" for one in arguments))
    try:
        with time_limit("kafka: formatting its storage", f"check this machine's load and the disk of {store}"):
            done = subprocess.run(
                [str(java), f"@{arguments_file}"], capture_output=True, text=True, timeout=60, check=False
            )
    finally:
        arguments_file.unlink()
    if done.returncode:
        raise InfrastructureError(f"kafka: formatting {store} failed: {_last_line(done.stderr)}")
    # A partially written storage after a power cut would prevent the broker's start.
    for written in (store / "data", _metadata_folder(settings)):
        if written.exists():
            sync_tree(written)
    write_atomic(marker, _digest(known))


def kafka_ready(bootstrap: str, secrets: Path) -> bool:
    """Return whether the broker answers a metadata request of the harness user in `secrets`."""
    host, _, port = bootstrap.split(",")[0].rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=0.5):
            pass
    except OSError:
        return False
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    try:
        client = AdminClient(kafka_client(bootstrap, {"log_level": 0}, secrets=secrets))
        return bool(client.list_topics(timeout=3).brokers)
    except KafkaException:
        return False


def _cluster_id() -> str:
    import base64

    return base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")


def _last_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1] if lines else "no message"


# ---- Topics of attempts, and the rights of workloads ----


# Prefix of an attempt's topics.
TOPICS = "faultline-"
# The client's own timeouts, which produce a reason.
TIMEOUTS = dict.fromkeys(("operation_timeout", "request_timeout"), 30.0)


def delete_topics(client: Any, topics: Sequence[str]) -> None:
    """Delete topics by an admin client, ignoring missing ones. Raises InfrastructureError."""
    from confluent_kafka import KafkaError, KafkaException

    for name, future in (client.delete_topics(list(topics), **TIMEOUTS) if topics else {}).items():
        try:
            future.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise InfrastructureError(f"topic {name}: deletion failed: {error.args[0].str()}") from None


def delete_own_topics(settings: Settings, topics: Sequence[str]) -> None:
    """Delete topics at the broker of these settings, without Airflow."""
    if topics:
        delete_topics(admin_client(settings), topics)


def admin_client(settings: Settings) -> Any:
    """Return an admin client of that broker."""
    from confluent_kafka.admin import AdminClient

    return AdminClient(kafka_client(settings.endpoints.kafka, secrets=settings.logins))


def grant_workload_rights(client: Any) -> None:
    """Allow the workload user to read and write topics of attempts, in any group, with transactions. Idempotent."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import (  # type: ignore[attr-defined]
        AclBinding,
        AclOperation,
        AclPermissionType,
        ResourcePatternType,
        ResourceType,
    )

    def allow(kind: Any, name: str, pattern: Any, operation: Any) -> Any:
        return AclBinding(kind, name, pattern, f"User:{WORKLOAD}", "*", operation, AclPermissionType.ALLOW)

    on_topics = (AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE)
    rights = [allow(ResourceType.TOPIC, TOPICS, ResourcePatternType.PREFIXED, operation) for operation in on_topics]
    rights.append(allow(ResourceType.GROUP, "*", ResourcePatternType.LITERAL, AclOperation.READ))
    rights.append(allow(ResourceType.TRANSACTIONAL_ID, TOPICS, ResourcePatternType.PREFIXED, AclOperation.WRITE))
    try:
        for future in client.create_acls(rights, request_timeout=TIMEOUTS["request_timeout"]).values():
            future.result()
    except KafkaException as error:
        raise InfrastructureError(f"kafka: granting the workload's rights failed: {error.args[0].str()}") from None
