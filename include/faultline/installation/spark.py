"""Spark's standalone cluster (a master and its workers), and the persistent Spark session."""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from faultline.engines.spark import standalone
from faultline.engines.spark.distributions import Distribution
from faultline.engines.spark.settings import properties_file, properties_text
from faultline.engines.spark.standalone import worker_memory_mb
from faultline.installation.supervisord import Service
from faultline.system.endpoints import Endpoints
from faultline.system.errors import InfrastructureError
from faultline.system.files import write_private
from faultline.system.process_tags import instance_option
from faultline.system.secrets import make_secrets
from faultline.system.settings import Settings, is_auth_disabled, workers_of

# More slots than cores, so that the papers' executor counts run on any machine; the record states oversubscription.
WORKER_SLOTS = 64
PROBE_S = 1.0

# Millisecond instants, the thread (it carries the task's TID) and RocksDB's own lines: the
# timeline of a recovery is read from these logs.
_LOG4J = """\
rootLogger.level = INFO
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = %s
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %%d{yyyy-MM-dd'T'HH:mm:ss.SSS}{UTC}Z %%p [%%t] %%c{1}: %%m%%n%%ex
"""


def log4j(target: str, levels: Mapping[str, str]) -> str:
    """Return a JVM's logging settings. `levels`: by prefix of the class names."""
    named = enumerate(levels.items())
    return _LOG4J % target + "".join(
        f"logger.a{number}.name = {name}\nlogger.a{number}.level = {level}\n" for number, (name, level) in named
    )


LOG4J_SPARK = log4j(
    "SYSTEM_ERR",
    {
        "org.apache.kafka": "WARN",
        "org.apache.kafka.clients.NetworkClient": "INFO",
        "org.apache.spark.sql.catalyst.expressions.codegen": "WARN",
        "org.sparkproject.jetty": "WARN",
    },
)


def spark_home() -> Path:
    """Return the folder of the installed pyspark, without importing it."""
    import importlib.util

    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise InfrastructureError("pyspark: missing; fix: run `./faultline` again, which sets up the environment")
    return Path(next(iter(spec.submodule_search_locations)))


def spark_submit(
    settings: Settings, conf: Mapping[str, str], program: Path, *arguments: str, master: str, name: str = ""
) -> list[str]:
    """Return the spark-submit command of a program of this project, without Airflow's Connections."""
    command = [str(spark_home() / "bin" / "spark-submit"), "--master", master]
    command += ["--properties-file", str(properties_file(settings))]
    command += [part for key, value in conf.items() for part in ("--conf", f"{key}={value}")]
    return [*command, *(("--name", name) if name else ()), str(program), *arguments]


def spark_services(settings: Settings, instance: str, own: Distribution | None = None) -> list[Service]:
    """Return the master and the workers of the build `own`, or of the installed Spark.

    `instance`: the mark that identifies this installation's processes.
    """
    ports = settings.ports if own is None else own.ports
    endpoints = settings.endpoints if own is None else own.endpoints(settings.endpoints)
    home = spark_home() if own is None else own.spark_home
    work = settings.spark_work if own is None else settings.spark_work / f"build-{own.name}"
    named = str if own is None else own.service
    placement = settings.placement
    spark_class = str(home / "bin" / "spark-class")
    properties = ("--properties-file", str(properties_file(settings)))
    spark_environment = {
        "SPARK_HOME": str(home),
        "SPARK_CONF_DIR": str(settings.spark_conf),
        "SPARK_LOCAL_IP": placement.conductor,
        "SPARK_DAEMON_MEMORY": "512m",
        # The REST submission port is unused, and its number cannot be changed.
        "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
        "SPARK_DAEMON_JAVA_OPTS": f"-Dlog4j2.configurationFile={settings.spark_logging.as_uri()}",
        "PYSPARK_PYTHON": sys.executable if own is None else own.python,
        **({"JAVA_HOME": str(own.java_home)} if own is not None and own.java_home is not None else {}),
    }
    master = Service(
        named("spark-master"),
        [
            spark_class,
            "org.apache.spark.deploy.master.Master",
            *("--host", placement.conductor, "--port", str(ports["spark_master"])),
            *("--webui-port", str(ports["spark_master_ui"])),
            *properties,
        ],
        ready=lambda: standalone.master_state(endpoints) is not None,
        environment=spark_environment,
    )

    def worker(number: int) -> Service:
        name = named(f"spark-worker-{number}")
        host, address = placement.host_of(name), placement.address(name)
        return Service(
            name,
            [
                spark_class,
                "org.apache.spark.deploy.worker.Worker",
                *("--host", address, "--port", str(ports[f"spark_worker_{number}"])),
                *("--webui-port", str(ports[f"spark_worker_{number}_ui"])),
                *("--cores", str(WORKER_SLOTS), "--memory", f"{worker_memory_mb()}m"),
                *("--work-dir", str(work / f"worker-{number}")),
                *properties,
                endpoints.engine,
            ],
            ready=lambda: is_worker_registered(endpoints, ports, number),
            environment={
                **spark_environment,
                "SPARK_LOCAL_IP": address,
                "SPARK_WORKER_OPTS": instance_option(instance),
                **({} if host is None else {"SPARK_LOCAL_DIRS": str(work / f"worker-{number}" / "local")}),
            },
            victim=True,
            host=None if host is None else host.name,
        )

    return [master, *map(worker, workers_of(ports))]


def session_service(settings: Settings) -> Service:
    """Return the service of the persistent Spark session, for harvest and aggregate."""
    return Service(
        "spark-session",
        [sys.executable, "-P", "-m", "faultline.installation.start", "spark-session"],
        ready=lambda: is_session_ready(settings),
        background=True,
    )


def is_session_ready(settings: Settings) -> bool:
    """Return whether the persistent Spark session answers on its socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(PROBE_S)
        try:
            probe.connect(str(settings.session_socket))
            return bool(probe.recv(1))
        except OSError:
            return False


def prepare_spark(settings: Settings) -> None:
    """Write the settings of every Spark process: logging and authentication."""
    secret = make_secrets(settings.secrets).spark
    write_private(properties_file(settings), properties_text(secret, is_open=is_auth_disabled(settings)))
    settings.spark_conf.mkdir(parents=True, exist_ok=True)
    settings.spark_work.mkdir(parents=True, exist_ok=True)
    settings.spark_logging.write_text(LOG4J_SPARK)


def master_state(settings: Settings) -> dict[str, object] | None:
    """Return the Master's `/json/` page on workers and applications; None if it does not answer."""
    return standalone.master_state(settings.endpoints)


def is_worker_registered(endpoints: Endpoints, ports: Mapping[str, int], number: int) -> bool:
    """Return whether the Master at `endpoints` lists worker `number` as alive; `ports` of its installation."""
    state = standalone.master_state(endpoints)
    workers = state.get("workers") if state else None
    port = ports[f"spark_worker_{number}"]
    return isinstance(workers, list) and any(
        worker.get("port") == port and worker.get("state") == "ALIVE" for worker in workers
    )
