"""The embedded services: what each one runs, and when it is ready.

Every service is the real program: a Kafka broker in KRaft mode, a Spark standalone master with
two workers, and Airflow's API server, scheduler, DAG processor and triggerer.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from faultline.base.errors import InfrastructureError
from faultline.base.http import fetch_json
from faultline.base.settings import HOST, WORKERS, Settings
from faultline.engines.spark import standalone
from faultline.engines.spark.standalone import WORKER_MEMORY as WORKER_MEMORY
from faultline.engines.spark.standalone import worker_memory_mb

# A worker offers more slots than the machine has cores, so that the papers' executor counts run
# anywhere; whether cores were oversubscribed stands in the record.
WORKER_SLOTS = 64

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

# Millisecond instants, the thread (it carries the task's TID) and RocksDB's own lines: the
# timeline of a recovery is read from these logs.
LOG4J_SPARK = """\
rootLogger.level = INFO
rootLogger.appenderRef.err.ref = err
appender.err.type = Console
appender.err.name = err
appender.err.target = SYSTEM_ERR
appender.err.layout.type = PatternLayout
appender.err.layout.pattern = %d{yyyy-MM-dd'T'HH:mm:ss.SSS}{UTC}Z %p [%t] %c{1}: %m%n%ex
logger.kafka.name = org.apache.kafka
logger.kafka.level = WARN
logger.network.name = org.apache.kafka.clients.NetworkClient
logger.network.level = INFO
logger.codegen.name = org.apache.spark.sql.catalyst.expressions.codegen
logger.codegen.level = WARN
logger.jetty.name = org.sparkproject.jetty
logger.jetty.level = WARN
"""


@dataclass(frozen=True)
class Service:
    """One supervised program. `ready` says whether it answers; `environment` is added to the common one."""

    name: str
    command: list[str]
    ready: Callable[[], bool]
    environment: dict[str, str] = field(default_factory=dict)
    stop_signal: str = "TERM"
    # A fault may hold its restart back; see `faultline.cluster.restart_hold`.
    victim: bool = False


def spark_home() -> Path:
    """The folder of the installed pyspark, without importing it."""
    import importlib.util

    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise InfrastructureError("pyspark: not installed; run ./faultline again, which sets the environment up")
    return Path(next(iter(spec.submodule_search_locations)))


def kafka_classpath(settings: Settings) -> str:
    """The broker's jars, with PySpark's logging jars before them: the broker's own bring no logger."""
    jars = spark_home() / "jars"
    names = ("slf4j-api-", "log4j-api-", "log4j-core-", "log4j-slf4j2-impl-")
    logging = [str(path) for path in sorted(jars.glob("*.jar")) if path.name.startswith(names)]
    return os.pathsep.join([*logging, str(settings.jars / "kafka" / "*")])


def instance_mark(instance: str) -> str:
    """The argument that marks a service's JVM as this installation's, for the guard rails of faults."""
    return f"-Dfaultline.instance={instance}"


def data_services(settings: Settings, java: Path, instance: str) -> list[Service]:
    """Kafka, the Spark master and the workers, of the `up` that is known as `instance`."""
    ports = settings.ports
    spark_class = str(spark_home() / "bin" / "spark-class")
    spark_environment = {
        "SPARK_HOME": str(spark_home()),
        "SPARK_CONF_DIR": str(settings.spark_conf),
        "SPARK_LOCAL_IP": HOST,
        "SPARK_DAEMON_MEMORY": "512m",
        # The REST submission port is not used, and it cannot be moved out of another service's way.
        "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
        "SPARK_DAEMON_JAVA_OPTS": f"-Dlog4j2.configurationFile={settings.spark_logging.as_uri()}",
        "PYSPARK_PYTHON": sys.executable,
    }
    kafka = Service(
        "kafka",
        [
            str(java),
            "-Xms384m",
            "-Xmx512m",
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
    master = Service(
        "spark-master",
        [
            spark_class,
            "org.apache.spark.deploy.master.Master",
            *("--host", HOST, "--port", str(ports["spark_master"]), "--webui-port", str(ports["spark_master_ui"])),
        ],
        ready=lambda: master_state(settings) is not None,
        environment=spark_environment,
    )
    workers = [
        Service(
            f"spark-worker-{number}",
            [
                spark_class,
                "org.apache.spark.deploy.worker.Worker",
                *("--host", HOST, "--port", str(ports[f"spark_worker_{number}"])),
                *("--webui-port", str(ports[f"spark_worker_{number}_ui"])),
                *("--cores", str(WORKER_SLOTS), "--memory", f"{worker_memory_mb()}m"),
                *("--work-dir", str(settings.spark_work / f"worker-{number}")),
                settings.endpoints.engine,
            ],
            ready=lambda number=number: worker_registered(settings, number),  # type: ignore[misc]
            environment={**spark_environment, "SPARK_WORKER_OPTS": instance_mark(instance)},
            victim=True,
        )
        for number in range(1, WORKERS + 1)
    ]
    return [kafka, master, *workers]


def airflow_services(settings: Settings) -> list[Service]:
    """Airflow's four components, from this environment's own `airflow` command."""
    airflow = str(Path(sys.executable).with_name("airflow"))

    def component(name: str) -> Callable[[], bool]:
        return lambda: airflow_health(settings).get(name) == "healthy"

    api_command = ["api-server", "--host", HOST, "--port", str(settings.ports["airflow"]), "--workers", "1"]
    return [
        Service(
            "airflow-api-server", [airflow, *api_command], lambda: bool(airflow_health(settings)), stop_signal="INT"
        ),
        # The tasks' logs are read from disk, so the log servers, which bind to every address, stay off.
        Service(
            "airflow-scheduler",
            [
                sys.executable,
                "-P",
                "-m",
                "faultline.cluster.scheduler_start",
                airflow,
                "scheduler",
                "--skip-serve-logs",
            ],
            component("scheduler"),
        ),
        Service("airflow-dag-processor", [airflow, "dag-processor"], component("dag_processor")),
        Service("airflow-triggerer", [airflow, "triggerer", "--skip-serve-logs"], component("triggerer")),
    ]


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


def prepare_spark(settings: Settings) -> None:
    """Writes the logging settings that every Spark process reads."""
    settings.spark_conf.mkdir(parents=True, exist_ok=True)
    settings.spark_work.mkdir(parents=True, exist_ok=True)
    settings.spark_logging.write_text(LOG4J_SPARK)


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


def master_state(settings: Settings) -> dict[str, object] | None:
    """The Master's own view of workers and applications (its `/json/`), or None when it does not answer."""
    return standalone.master_state(settings.endpoints)


def worker_registered(settings: Settings, number: int) -> bool:
    """True when the Master knows worker `number` as alive."""
    state = master_state(settings)
    if not state:
        return False
    port = settings.ports[f"spark_worker_{number}"]
    workers = state.get("workers")
    return isinstance(workers, list) and any(
        worker.get("port") == port and worker.get("state") == "ALIVE" for worker in workers
    )


def airflow_health(settings: Settings) -> dict[str, str]:
    """Status by component as the API server reports it; empty when it does not answer."""
    answer = fetch_json(f"{settings.endpoints.airflow}/api/v2/monitor/health") or {}
    return {
        name: str(part.get("status"))
        for name, part in answer.items()
        if isinstance(part, dict) and part.get("status") is not None
    }


def _cluster_id() -> str:
    import base64

    return base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")


def _last_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1] if lines else "no message"
