"""External cluster: Kafka with TLS, SCRAM and ACLs, and Spark with a secret.

It runs from the project's jars, without the process tags of Faultline's services.
"""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

from faultline.installation.java import find_java
from faultline.installation.kafka import LOG4J_KAFKA, kafka_classpath
from faultline.installation.spark import spark_home
from faultline.system.files import write_private
from faultline.system.secrets import properties
from faultline.system.settings import HOST, load_settings
from faultline.system.socket_owner import fetch_json
from faultline.system.waiting import wait_until
from tests.support.certificates import Authority, Pair
from tests.support.installation import free_ports

MECHANISM = "SCRAM-SHA-512"
# A user with all rights, whose password has special characters, and a user without rights.
USER, POWERLESS = "bench", "nobody"
PASSWORDS = {USER: 'pa"ss\\word 1', POWERLESS: "of-nobody-0002"}
SECRET = "a secret of the cluster \\ 7"


@contextmanager
def process(
    command: list[str], log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run an external program without Faultline's environment variables."""
    with log.open("wb") as output:
        started = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            env={**{key: value for key, value in os.environ.items() if not key.startswith("FAULTLINE")},
                 **(environment or {})},
        )  # fmt: skip
        try:
            yield started
        finally:
            os.killpg(started.pid, signal.SIGKILL)
            started.wait()


@dataclass(frozen=True)
class Place:
    """Host of an external program: its address, and the command prefix that runs a program on it."""

    address: str = HOST
    enter: tuple[str, ...] = ()


_HERE = Place()


@dataclass(frozen=True)
class ExternalKafka:
    """Address of the broker. `authority`: the CA of the broker's certificate, in PEM form."""

    bootstrap: str
    authority: str

    def login(self, user: str = USER, **more: str) -> dict[str, str]:
        """Return settings for librdkafka."""
        return {
            "bootstrap.servers": self.bootstrap, "security.protocol": "SASL_SSL", "sasl.mechanism": MECHANISM,
            "sasl.username": user, "sasl.password": PASSWORDS[user], "ssl.ca.pem": self.authority, **more,
        }  # fmt: skip


@contextmanager
def external_kafka(
    folder: Path, *, authority: Authority | None = None, own: Pair | None = None, place: Place = _HERE
) -> Iterator[ExternalKafka]:
    """Run a broker. `own`: its certificate (default: a valid one)."""
    authority, host = authority or Authority(), place.address
    own = own or authority.signed(host)
    inner, outer, controller = free_ports(3)
    folder.mkdir(parents=True)
    write_private(folder / "own.pem", own.key + own.certificate)
    (folder / "log4j2.properties").write_text(LOG4J_KAFKA)
    listeners = f"INNER://{host}:{inner},OUTER://{host}:{outer}"
    values = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.bootstrap.servers": f"{host}:{controller}",
        "listeners": f"{listeners},CONTROLLER://{host}:{controller}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": "INNER:PLAINTEXT,CONTROLLER:PLAINTEXT,OUTER:SASL_SSL",
        "inter.broker.listener.name": "INNER",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(folder / "data"),
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "auto.create.topics.enable": "false",
        "sasl.enabled.mechanisms": MECHANISM,
        f"listener.name.outer.{MECHANISM.lower()}.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
        "listener.name.outer.ssl.keystore.type": "PEM",
        "listener.name.outer.ssl.keystore.location": str(folder / "own.pem"),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        # ANONYMOUS is the broker itself, on the inner listener.
        "super.users": f"User:ANONYMOUS;User:{USER}",
    }
    file = folder / "server.properties"
    file.write_text(properties(values))
    java, settings = str(find_java().home / "bin" / "java"), load_settings()
    cluster = base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")
    arguments = ["-cp", kafka_classpath(settings), "kafka.tools.StorageTool", "format", f"--cluster-id={cluster}"]
    arguments += ["--standalone", "-c", str(file)]
    for user, password in PASSWORDS.items():
        arguments += ["--add-scram", f"{MECHANISM}=[name={user},password={password}]"]
    file_of_arguments = folder / "format.arguments"
    write_private(file_of_arguments, "".join(f"{json.dumps(one)}\n" for one in arguments))
    subprocess.run([java, f"@{file_of_arguments}"], check=True, capture_output=True, timeout=60)
    logging = f"-Dlog4j2.configurationFile={(folder / 'log4j2.properties').as_uri()}"
    command = [*place.enter, java, "-Xmx384m", logging, "-cp", kafka_classpath(settings), "kafka.Kafka", str(file)]
    with process(command, folder / "kafka.log") as running:
        wait_until(
            lambda: _listens(host, outer), timeout_s=60, what="the external broker",
            alive=lambda: None if running.poll() is None else (folder / "kafka.log").read_text()[-2000:],
        )  # fmt: skip
        yield ExternalKafka(f"{host}:{outer}", authority.pem)


def _listens(host: str, port: int) -> bool:
    import socket

    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False


@dataclass(frozen=True)
class ExternalSpark:
    master: str
    ui: str


def spark_with_version(version: str, folder: Path) -> Path:
    """Return a copy of this Spark's home that reports another version."""
    own, jars = spark_home(), folder / "jars"
    jars.mkdir(parents=True)
    for path in own.iterdir():
        if path.name != jars.name:
            (folder / path.name).symlink_to(path)
    for jar in (own / "jars").iterdir():
        if not jar.name.startswith("spark-common-utils_"):
            (jars / jar.name).symlink_to(jar)
            continue
        with ZipFile(jar) as original, ZipFile(jars / jar.name, "w") as made:
            for name in original.namelist():
                data = original.read(name)
                if name == "spark-version-info.properties":
                    data = re.sub(rb"(?m)^version=.*$", b"version=" + version.encode(), data)
                made.writestr(name, data)
    return folder


@contextmanager
def external_spark(
    folder: Path, *, workers: Sequence[Place] = (_HERE,), master_at: Place = _HERE, of_workers: Path | None = None
) -> Iterator[ExternalSpark]:
    """Yield a standalone master and workers with authentication and encryption.

    `of_workers`: Spark home of the workers, by default the installed one.
    """
    folder.mkdir(parents=True)
    port, page, *rest = free_ports(2 + 2 * len(workers))
    conf_file = folder / "spark.conf"
    closed = {"spark.authenticate": "true", "spark.authenticate.secret": SECRET.replace("\\", "\\\\"), **conf()}
    write_private(conf_file, properties(closed))
    environment = {
        "JAVA_HOME": str(find_java().home), "SPARK_HOME": str(spark_home()),
        "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false", "PYSPARK_PYTHON": sys.executable,
        "SPARK_CONF_DIR": str(folder), "SPARK_DAEMON_MEMORY": "384m",
    }  # fmt: skip
    spark_class = str(spark_home() / "bin" / "spark-class")
    made = ExternalSpark(f"spark://{master_at.address}:{port}", f"http://{master_at.address}:{page}")
    with ExitStack() as stack:
        at = master_at.address
        master = [*master_at.enter, spark_class, "org.apache.spark.deploy.master.Master", "--host", at]
        master += ["--port", str(port)]
        master += ["--webui-port", str(page), "--properties-file", str(conf_file)]
        stack.enter_context(process(master, folder / "master.log", {**environment, "SPARK_LOCAL_IP": at}))
        for number, place in enumerate(workers):
            at = place.address
            worker = [*place.enter, spark_class, "org.apache.spark.deploy.worker.Worker", "--host", at]
            worker += ["--port", str(rest[2 * number]), "--webui-port", str(rest[2 * number + 1]), "--cores", "8"]
            worker += ["--memory", "6g", "--work-dir", str(folder / f"work-{number}")]
            worker += ["--properties-file", str(conf_file), made.master]
            own = {"SPARK_HOME": str(of_workers or spark_home()), "SPARK_LOCAL_IP": at}
            stack.enter_context(process(worker, folder / f"worker-{number}.log", {**environment, **own}))
        wait_until(lambda: _alive(made) == len(workers), timeout_s=60, what="the external Spark workers")
        yield made


def conf() -> dict[str, str]:
    """Return the settings, without the secret, that applications need for this cluster."""
    values = {"enabled": "true", "authEngineVersion": "2", "cipher": "AES/GCM/NoPadding", "saslFallback": "false"}
    return {f"spark.network.crypto.{name}": value for name, value in values.items()}


def _alive(spark: ExternalSpark) -> int:
    state = fetch_json(f"{spark.ui}/json/") or {}
    workers = state.get("workers")
    return sum(one["state"] == "ALIVE" for one in workers) if isinstance(workers, list) else 0
