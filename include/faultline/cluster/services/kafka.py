"""The Kafka broker: one process in KRaft mode, which is its own controller."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

from faultline.base.errors import InfrastructureError
from faultline.base.settings import HOST, Settings
from faultline.cluster.services.service import Service, instance_mark
from faultline.cluster.services.spark import spark_home

HEAP_MB = 512
HEAP_OPTIONS = ("-Xms384m", f"-Xmx{HEAP_MB}m")
LOG4J_KAFKA = """\
rootLogger.level = INFO
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{yyyy-MM-dd'T'HH:mm:ss.SSS}{UTC}Z %p [%t] %c{1}: %m%n
logger.quiet.name = org.apache.kafka
logger.quiet.level = WARN
"""


def kafka_service(settings: Settings, java: Path, instance: str) -> Service:
    """The broker, of the `up` that is known as `instance`."""
    return Service(
        "kafka",
        [
            str(java),
            *HEAP_OPTIONS,
            instance_mark(instance),
            f"-Dlog4j2.configurationFile={(settings.home / 'kafka' / 'log4j2.properties').as_uri()}",
            "-cp",
            kafka_classpath(settings),
            "kafka.Kafka",
            str(settings.home / "kafka" / "server.properties"),
        ],
        ready=lambda: kafka_ready(settings.endpoints.kafka),
        victim=True,
    )


def kafka_classpath(settings: Settings) -> str:
    """The broker's jars, with PySpark's logging jars before them: the broker's own bring no logger."""
    jars = spark_home() / "jars"
    names = ("slf4j-api-", "log4j-api-", "log4j-core-", "log4j-slf4j2-impl-")
    logging = [str(path) for path in sorted(jars.glob("*.jar")) if path.name.startswith(names)]
    return os.pathsep.join([*logging, str(settings.jars / "kafka" / "*")])


def prepare_kafka(settings: Settings, java: Path) -> None:
    """Writes the broker's settings and formats its storage once; existing data are kept."""
    folder = settings.home / "kafka"
    data = folder / "data"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "log4j2.properties").write_text(LOG4J_KAFKA)
    broker, controller = settings.ports["kafka"], settings.ports["kafka_controller"]
    proxied, proxy = settings.ports["kafka_proxied"], settings.ports["kafka_proxy"]
    # Who comes in through PROXIED is told to come back through the proxy: faults of the connection work there.
    listeners = f"PLAINTEXT://{HOST}:{broker},CONTROLLER://{HOST}:{controller},PROXIED://{HOST}:"
    properties = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.bootstrap.servers": f"{HOST}:{controller}",
        "listeners": f"{listeners}{proxied}",
        "advertised.listeners": f"{listeners}{proxy}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,PROXIED:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(data),
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        "auto.create.topics.enable": "false",
        "log.retention.hours": "24",
        "log.message.timestamp.type": "CreateTime",
    }
    file = folder / "server.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    if (data / "meta.properties").exists():
        return
    # `--cluster-id=` with an equals sign: a random id may begin with a dash.
    command = [str(java), "-cp", kafka_classpath(settings), "kafka.tools.StorageTool", "format"]
    done = subprocess.run(
        [*command, f"--cluster-id={_cluster_id()}", "--standalone", "-c", str(file)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode:
        raise InfrastructureError(f"kafka: storage in {data} could not be formatted: {_last_line(done.stderr)}")


def kafka_ready(bootstrap: str) -> bool:
    """True when the broker answers a metadata request."""
    host, port = bootstrap.split(":")
    try:
        with socket.create_connection((host, int(port)), timeout=0.5):
            pass
    except OSError:
        return False
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    try:
        client = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        return bool(client.list_topics(timeout=3).brokers)
    except KafkaException:
        return False


def _cluster_id() -> str:
    import base64

    return base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")


def _last_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1] if lines else "no message"
