"""docker-compose.yaml and docker/ against the project: versions, ports, settings, Connections, secrets, health."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatch
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from faultline.airflow_home import USER, configuration
from faultline.jars import read_lock
from faultline.orchestration.provision import connections
from faultline.services import WORKER_SLOTS, data_services, prepare_kafka
from faultline.settings import DEFAULT_PORTS, HOST, ROOT, WORKERS, Settings

FILE = ROOT / "docker-compose.yaml"
DOCKER = ROOT / "docker"
COMPOSE: dict[str, Any] = yaml.safe_load(FILE.read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
WORKER_NAMES = [f"spark-worker-{number}" for number in range(1, WORKERS + 1)]
SPARK = ["spark-master", *WORKER_NAMES]
AIRFLOW = [f"airflow-{part}" for part in ("api-server", "scheduler", "dag-processor", "triggerer")]
ONE_SHOT = "airflow-init"
DOCKERFILE = (DOCKER / "Dockerfile").read_text().replace("\\\n", " ")
# What the image puts where; Settings of a container.
INSIDE = Settings(Path("/opt/faultline"), Path("/var/lib/faultline"), Path("/var/lib/faultline/results"))
# Service, port inside: the name of the port in settings.py.
PUBLISHED = {
    ("kafka", 29092): "kafka",
    ("spark-master", 18080): "spark_master_ui",
    ("spark-worker-1", 18081): "spark_worker_1_ui",
    ("spark-worker-2", 18082): "spark_worker_2_ui",
    ("airflow-api-server", 18090): "airflow",
}
REQUIRED = re.compile(r"\$\{[A-Z_]+:\?[^}]+\}")


def requirement(name: str) -> str:
    found = re.search(rf"^{re.escape(name)}==(\S+)", (ROOT / "requirements.in").read_text(), re.MULTILINE)
    assert found, name
    return found[1]


def environment(service: str) -> dict[str, str]:
    return dict(SERVICES[service].get("environment", {}))


def mebibytes(text: str) -> int:
    return int(text[:-1]) * {"m": 1, "g": 1024}[text[-1]]


def settings_in(folder: Path) -> Settings:
    return replace(INSIDE, home=folder)


# ---- Services, images, versions ----


def test_the_services_are_those_of_the_embedded_system() -> None:
    assert set(SERVICES) == {"kafka", "postgres", ONE_SHOT, *SPARK, *AIRFLOW}


def test_images_have_the_versions_of_the_locks() -> None:
    broker = next(jar.version for jar in read_lock() if (jar.artifact, jar.set) == ("kafka_2.13", "kafka"))
    assert SERVICES["kafka"]["image"] == f"apache/kafka:{broker}"
    for name in SPARK:
        assert SERVICES[name]["image"] == f"faultline-spark:{requirement('pyspark')}"
    for name in (ONE_SHOT, *AIRFLOW):
        assert SERVICES[name]["image"] == f"faultline-airflow:{requirement('apache-airflow')}"


def test_every_image_is_pinned_to_a_version() -> None:
    stages = set(re.findall(r"^FROM \S+ AS (\S+)", DOCKERFILE, re.MULTILINE))
    bases = set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)) - stages
    assert bases and stages == {"base", "spark", "airflow"}
    for image in bases | {service["image"] for service in SERVICES.values()}:
        assert re.fullmatch(r"[a-z/-]+:\d+\.\d+(\.\d+)?(-[a-z-]+)?", image), image


def test_the_images_are_made_from_the_locks_on_a_supported_python_and_java() -> None:
    version = re.search(r"^FROM python:(\d+\.\d+)\.\d+-slim", DOCKERFILE, re.MULTILINE)
    assert version and version[1] in (ROOT / "faultline").read_text()
    assert "openjdk-17-jre-headless" in DOCKERFILE
    assert "RUN python include/faultline/bootstrap.py" in DOCKERFILE
    assert "--require-hashes" in DOCKERFILE and "docker/airflow/postgresql.lock" in DOCKERFILE
    for variable, folder in {"FAULTLINE_HOME": INSIDE.home, "FAULTLINE_RESULTS": INSIDE.results}.items():
        assert f"{variable}={folder} " in DOCKERFILE
    assert f"WORKDIR {INSIDE.root}\n" in DOCKERFILE


def test_the_lock_of_the_database_drivers_has_hashes_and_no_address() -> None:
    text = (DOCKER / "airflow" / "postgresql.lock").read_text()
    assert re.findall(r"^([a-z0-9-]+)==", text, re.MULTILINE) == ["asyncpg", "psycopg2-binary"]
    assert text.count("--hash=sha256:") > 2 and "://" not in text


def test_what_the_dockerfile_copies_exists_and_is_sent_to_the_builder() -> None:
    rules = (DOCKER / "Dockerfile.dockerignore").read_text().split("\n")
    sent = [rule[1:] for rule in rules if rule.startswith("!")]
    assert "*" in rules
    for arguments in re.findall(r"^COPY (?:--\S+ )*(.+)$", DOCKERFILE, re.MULTILINE):
        for source in arguments.split()[:-1]:
            assert (ROOT / source).exists(), source
            assert any(fnmatch(source.rstrip("/"), rule) for rule in sent), f"{source} is not sent"


def test_services_of_one_image_are_built_alike() -> None:
    for service in SERVICES.values():
        if "build" in service:
            assert service["build"]["target"] == service["image"].split(":")[0].removeprefix("faultline-")
            assert (ROOT / service["build"]["context"] / service["build"]["dockerfile"]).is_file()


# ---- Ports, networks, mounts ----


def test_published_ports_are_the_projects_and_on_loopback() -> None:
    published = {}
    for name, service in SERVICES.items():
        for entry in service.get("ports", []):
            address, outside, inside = entry.split(":")
            assert address == HOST, f"{name}: {entry}"
            published[name, int(inside)] = int(outside)
    assert published == {key: DEFAULT_PORTS[port] for key, port in PUBLISHED.items()}


def test_compute_and_the_rest_meet_in_the_scheduler_alone() -> None:
    for name, service in SERVICES.items():
        expected = ["compute"] if name == "kafka" or name in SPARK else ["control"]
        assert service["networks"] == (["compute", "control"] if name == "airflow-scheduler" else expected), name
        assert "network_mode" not in service and "privileged" not in service and "pid" not in service


def test_mounts_exist_in_the_repository_and_are_read_only() -> None:
    for name, service in SERVICES.items():
        for mount in service.get("volumes", []):
            if isinstance(mount, str):
                volume, target = mount.split(":")
                assert volume in COMPOSE["volumes"], f"{name}: {mount}"
                assert target.startswith(("/var/lib/kafka/", "/var/lib/postgresql/", f"{INSIDE.home}/"))
            else:
                assert mount["type"] == "bind" and mount["read_only"] is True
                assert (ROOT / mount["source"]).is_dir(), mount["source"]
                assert Path(mount["target"]) == INSIDE.root / mount["source"]


def test_all_code_that_is_imported_is_mounted() -> None:
    code = {"./dags", "./fault", "./generators", "./include", "./plugins", "./spark_jobs"}
    for name in (ONE_SHOT, *AIRFLOW):
        assert {mount["source"] for mount in SERVICES[name]["volumes"] if isinstance(mount, dict)} == code


def test_workers_and_scheduler_share_checkpoints_and_logs() -> None:
    shared = {f"results:{INSIDE.results}", f"spark-work:{INSIDE.spark_work}"}
    for name in (*WORKER_NAMES, "airflow-scheduler"):
        assert shared <= {mount for mount in SERVICES[name]["volumes"] if isinstance(mount, str)}, name
    for folder in (INSIDE.airflow_home, INSIDE.results, INSIDE.spark_work):
        # A volume takes its owner from the image's folder.
        assert re.search(rf"mkdir -p .*{folder}(\s|$)", DOCKERFILE, re.MULTILINE), folder


# ---- Life of the services ----


def test_long_running_services_have_health_checks_and_restart() -> None:
    for name, service in SERVICES.items():
        if name == ONE_SHOT:
            assert service["restart"] == "no" and "healthcheck" not in service
            continue
        assert service["restart"] == "unless-stopped", name
        check = service["healthcheck"]
        assert check["test"][0] == "CMD" and {"interval", "timeout", "retries", "start_period"} <= set(check), name


def test_every_service_bounds_its_logs() -> None:
    for name, service in SERVICES.items():
        assert {"max-size", "max-file"} <= set(service["logging"]["options"]), name


def test_dependencies_wait_for_what_can_come_true() -> None:
    for name, service in SERVICES.items():
        for other, wait in service.get("depends_on", {}).items():
            wanted = "service_completed_successfully" if other == ONE_SHOT else "service_healthy"
            assert wait == {"condition": wanted}, f"{name} on {other}"
    assert set(SERVICES["airflow-scheduler"]["depends_on"]) >= {"kafka", "postgres", ONE_SHOT, *WORKER_NAMES}


def test_scripts_that_are_started_exist_and_parse() -> None:
    started = [service.get("command", [""])[0] for service in SERVICES.values()]
    started += [service["healthcheck"]["test"][1] for service in SERVICES.values() if "healthcheck" in service]
    scripts = {Path(text).relative_to(INSIDE.root) for text in started if text.startswith(str(INSIDE.root))}
    assert len(scripts) == 5
    for script in (*scripts, Path("docker/prepare-spark"), Path("docker/make-secrets")):
        file = ROOT / script
        assert os.access(file, os.X_OK), script
        if file.read_text().startswith("#!/bin/sh"):
            subprocess.run(["sh", "-n", str(file)], check=True, timeout=10)
        else:
            compile(file.read_text(), str(file), "exec")


def fake(folder: Path, name: str, body: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


def test_a_killed_scheduler_is_started_again_and_a_stopped_one_is_not(tmp_path: Path) -> None:
    fake(tmp_path, "airflow", f'echo "$$ $*" >>{tmp_path}/started; exec /bin/sleep 60')
    fake(tmp_path, "sleep", "exit 0")
    path = f"{tmp_path}:{os.environ['PATH']}"
    script = subprocess.Popen([str(DOCKER / "airflow" / "scheduler")], env={"PATH": path}, stderr=subprocess.DEVNULL)

    def started(count: int) -> list[str]:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            lines = (tmp_path / "started").read_text().splitlines() if (tmp_path / "started").exists() else []
            if len(lines) >= count:
                return lines
            time.sleep(0.02)
        raise AssertionError(f"not started {count} times")

    try:
        pid, *arguments = started(1)[0].split()
        assert arguments == ["scheduler", "--skip-serve-logs"]
        os.kill(int(pid), signal.SIGKILL)
        second = int(started(2)[1].split()[0])
        script.terminate()
        assert script.wait(20) == 0
        with pytest.raises(ProcessLookupError):
            os.kill(second, 0)
    finally:
        script.kill()
        script.wait()


def test_init_writes_the_password_and_then_database_and_connections(tmp_path: Path) -> None:
    fake(tmp_path, "airflow", f'echo "$*" >>{tmp_path}/called')
    fake(tmp_path, "python", f'exec {sys.executable} "$@"')
    passwords = tmp_path / "passwords.json"
    variables = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
        "FAULTLINE_ADMIN_PASSWORD": 'of "everything"',
    }
    subprocess.run([str(DOCKER / "airflow" / "init")], env=variables, check=True, timeout=30)
    assert json.loads(passwords.read_text()) == {USER: 'of "everything"'}
    assert passwords.stat().st_mode & 0o077 == 0
    migrate, load = (tmp_path / "called").read_text().splitlines()
    assert migrate == "db migrate" and load.startswith("connections import --overwrite /opt/faultline/docker/")


# ---- Settings ----


def test_spark_is_started_as_the_embedded_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    # Spark's settings folder belongs to the Python environment.
    monkeypatch.setattr("sys.prefix", f"{INSIDE.home}/venv")
    embedded = {service.name: service for service in data_services(INSIDE, Path("java"), "0" * 16)}
    for name in SPARK:
        script, *given = SERVICES[name]["command"]
        assert script == f"/opt/faultline/docker/spark/{'master' if name == 'spark-master' else 'worker'}"
        known = [text.replace(f"//{HOST}", "//spark-master") for text in embedded[name].command[2:]]
        known = [name if text == HOST else text for text in known]
        if "--memory" in known:
            # The embedded worker offers a share of the machine, this one a part of its limit.
            position = known.index("--memory") + 1
            known[position] = given[position]
        assert given == known
        same = {"SPARK_DAEMON_MEMORY", "SPARK_MASTER_OPTS", "SPARK_DAEMON_JAVA_OPTS", "SPARK_CONF_DIR"}
        for key in same:
            assert environment(name)[key] == embedded[name].environment[key]
    assert str(WORKER_SLOTS) in SERVICES["spark-worker-1"]["command"]


def test_workers_are_limited_alike_and_offer_less_than_their_limit() -> None:
    kept = ("cpus", "mem_limit", "memswap_limit", "secrets", "volumes", "healthcheck", "environment")
    first, *others = (SERVICES[name] for name in WORKER_NAMES)
    for other in others:
        assert {key: other[key] for key in kept} == {key: first[key] for key in kept}
    offered = first["command"][first["command"].index("--memory") + 1]
    daemon = environment("spark-worker-1")["SPARK_DAEMON_MEMORY"]
    # Two executors of 384 MiB overhead each, beside heap and worker.
    assert mebibytes(offered) + mebibytes(daemon) + 2 * 384 <= mebibytes(first["mem_limit"])
    assert first["mem_limit"] == first["memswap_limit"]


def test_the_broker_has_the_settings_of_the_embedded_one(tmp_path: Path) -> None:
    # Formatted storage, so that no Java is started.
    (tmp_path / "kafka" / "data").mkdir(parents=True)
    (tmp_path / "kafka" / "data" / "meta.properties").touch()
    prepare_kafka(settings_in(tmp_path), Path("java"))
    lines = (tmp_path / "kafka" / "server.properties").read_text().splitlines()
    known = dict(line.split("=", 1) for line in lines)
    # The containers have listeners of their own, and no proxy yet.
    listening = {"listeners", "advertised.listeners", "listener.security.protocol.map"}
    local = {"log.dirs", "controller.quorum.bootstrap.servers", *listening}
    given = environment("kafka")
    for key in known.keys() - local:
        assert given[f"KAFKA_{key.upper().replace('.', '_')}"] == known[key], key
    listeners = dict(entry.split("://") for entry in given["KAFKA_ADVERTISED_LISTENERS"].split(","))
    assert listeners == {
        "PLAINTEXT": f"kafka:{DEFAULT_PORTS['kafka']}",
        "LOOPBACK": f"{HOST}:{DEFAULT_PORTS['kafka']}",
    }
    assert f"PLAINTEXT://:{DEFAULT_PORTS['kafka']}," in given["KAFKA_LISTENERS"]
    assert given["KAFKA_CONTROLLER_QUORUM_VOTERS"] == f"1@kafka:{DEFAULT_PORTS['kafka_controller']}"
    assert given["KAFKA_LOG_DIRS"] in SERVICES["kafka"]["volumes"][0]


def test_airflow_has_the_options_of_the_embedded_one() -> None:
    keys = dict.fromkeys(("fernet", "internal", "api", "jwt"), "SECRET")
    server = f"airflow-api-server:{DEFAULT_PORTS['airflow']}"
    differing = {
        "core.execution_api_server_url": f"http://{server}/execution/",
        "api.host": "0.0.0.0",
    }
    known = {
        f"{section}.{option}": value
        for section, options in configuration(INSIDE, keys).items()
        for option, value in options.items()
    }
    known |= differing
    for service in (ONE_SHOT, *AIRFLOW):
        given = {
            ".".join(key.removeprefix("AIRFLOW__").lower().split("__")): value
            for key, value in environment(service).items()
            if key.startswith("AIRFLOW__")
        }
        assert set(given) == set(known)
        for key, value in known.items():
            if key == "database.sql_alchemy_conn":
                assert re.fullmatch(r"postgresql\+psycopg2://faultline:\$\{\S+ .*\}@postgres:5432/airflow", given[key])
            elif value == "SECRET":
                assert REQUIRED.fullmatch(given[key]), key
            else:
                assert given[key] == value, key
        assert environment(service)["AIRFLOW_HOME"] == str(INSIDE.airflow_home)
    assert known["core.simple_auth_manager_users"] == f"{USER}:admin"


def test_the_database_is_the_one_that_airflow_asks_for() -> None:
    given = environment("postgres")
    address = environment("airflow-scheduler")["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"]
    assert f"//{given['POSTGRES_USER']}:{given['POSTGRES_PASSWORD']}@postgres:5432/{given['POSTGRES_DB']}" in address


def test_connections_agree_with_services_ports_and_the_embedded_ones() -> None:
    given = json.loads((DOCKER / "airflow" / "connections.json").read_text())
    known = connections(INSIDE)
    assert set(given) == {*known, *(f"ssh_{name}" for name in WORKER_NAMES)}
    for conn_id, arguments in known.items():
        expected = {**arguments, "extra": json.loads(str(arguments["extra"]))}
        if conn_id == "kafka_default":
            expected["extra"] = {"bootstrap.servers": f"kafka:{DEFAULT_PORTS['kafka']}"}
        if conn_id == "spark_default":
            expected["host"] = "spark://spark-master"
        assert given[conn_id] == expected
    port = int(sshd_config()["Port"])
    secrets = {f"/run/secrets/{name}" for name in SERVICES["airflow-scheduler"]["secrets"]}
    for name in WORKER_NAMES:
        arguments = given[f"ssh_{name}"]
        assert (arguments["host"], arguments["port"], arguments["login"]) == (name, port, "faultline")
        assert set(arguments["extra"].values()) == secrets
    assert "/opt/faultline/docker/airflow/connections.json" in (DOCKER / "airflow" / "init").read_text()


# ---- Secrets ----


def strings(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from strings(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for inner in value:
            yield from strings(inner, path)
    elif isinstance(value, str):
        yield path, value


def test_no_password_has_a_default() -> None:
    for path, text in strings(COMPOSE):
        for variable in re.findall(r"\$\{[^}]*\}?", text):
            assert REQUIRED.fullmatch(variable) or variable.startswith("${FAULTLINE_WORKER_CPUS:-"), f"{path}: {text}"
        if re.search(r"(PASSWORD|SECRET|SECRET_KEY|FERNET_KEY|TOKEN)$", path):
            assert REQUIRED.fullmatch(text), f"{path}: {text}"
        assert not re.search(r"://[^/\s:]+:(?!\$\{)[^@/\s]+@", text), f"{path}: {text}"


def test_keys_come_from_files_that_the_environment_names() -> None:
    for name, secret in COMPOSE["secrets"].items():
        assert REQUIRED.match(secret["file"]), name
    assert SERVICES["spark-worker-1"]["secrets"] == ["ssh_authorized_key", "ssh_host_key"]
    holders = [name for name, service in SERVICES.items() if "ssh_key" in service.get("secrets", [])]
    assert holders == ["airflow-scheduler"]


def sshd_config() -> dict[str, str]:
    lines = (DOCKER / "spark" / "sshd_config").read_text().splitlines()
    return dict(line.split(" ", 1) for line in lines if line and not line.startswith("#"))


def test_sshd_takes_one_user_by_key_only() -> None:
    config = sshd_config()
    no = ("PasswordAuthentication", "KbdInteractiveAuthentication", "PermitEmptyPasswords", "PermitRootLogin", "UsePAM")
    assert {config[key] for key in no} == {"no"}
    assert config["AuthenticationMethods"] == "publickey" and config["AllowUsers"] == "faultline"
    assert config["AuthorizedKeysFile"] == "/run/secrets/ssh_authorized_key"
    assert config["Port"] in SERVICES["spark-worker-1"]["healthcheck"]["test"]


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen makes the keys; install openssh-client")
def test_make_secrets_gives_all_that_is_asked_for_and_keeps_it(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"

    def make() -> dict[str, bytes]:
        command = [str(DOCKER / "make-secrets")]
        subprocess.run(
            command, env={**os.environ, "FAULTLINE_SECRETS": str(folder)}, check=True, capture_output=True, timeout=30
        )
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    made = make()
    assert make() == made
    given = dict(line.split("=", 1) for line in made["env"].decode().splitlines())
    assert set(given) == set(re.findall(r"\$\{([A-Z_]+):\?", FILE.read_text()))
    assert all(given.values()) and re.fullmatch(r"[\w-]{43}=", given["FAULTLINE_FERNET_KEY"])
    assert re.fullmatch(r"[0-9a-f]{48}", given["FAULTLINE_POSTGRES_PASSWORD"])
    assert {Path(secret["file"].split("}")[1]).name for secret in COMPOSE["secrets"].values()} <= set(made)
    hosts = [line.split()[0] for line in made["ssh_known_hosts"].decode().splitlines()]
    assert hosts == [f"[{name}]:{sshd_config()['Port']}" for name in WORKER_NAMES]
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())


# ---- The health check ----


@contextmanager
def answering(document: object) -> Iterator[str]:
    """A server that gives the document at every path; yields its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(document).encode())

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer((HOST, 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://{HOST}:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def healthy(*arguments: str) -> bool:
    command = [sys.executable, "-IS", str(DOCKER / "healthcheck"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert bool(done.stderr) == bool(done.returncode), done.stderr
    assert "Traceback" not in done.stderr
    return done.returncode == 0


def test_health_of_the_master_and_of_airflow() -> None:
    with answering({"status": "ALIVE", "scheduler": {"status": "healthy"}, "triggerer": {"status": None}}) as url:
        assert healthy("spark-master", url)
        assert healthy("airflow", url, "scheduler")
        assert not healthy("airflow", url, "triggerer")
        assert not healthy("airflow", url, "dag_processor")
    assert not healthy("spark-master", url)


def test_a_worker_is_healthy_when_the_master_knows_it_and_sshd_answers() -> None:
    def greet(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"SSH-2.0-test\r\n")

    with socket.create_server((HOST, 0)) as server:
        port = str(server.getsockname()[1])
        thread = threading.Thread(target=greet, args=(server,))
        thread.start()
        with answering({"workers": [{"host": socket.gethostname(), "state": "ALIVE"}]}) as url:
            assert healthy("spark-worker", url, port)
        thread.join()
        with answering({"workers": [{"host": socket.gethostname(), "state": "DEAD"}]}) as url:
            assert not healthy("spark-worker", url, port)
    with answering({"workers": [{"host": socket.gethostname(), "state": "ALIVE"}]}) as url:
        assert not healthy("spark-worker", url, port)


# ---- Compose itself ----


def test_compose_accepts_the_file() -> None:
    variables = dict.fromkeys(re.findall(r"\$\{([A-Z_]+):\?", FILE.read_text()), "1")
    command = ["docker", "compose", "--file", str(FILE), "config", "--quiet"]
    if shutil.which("docker") is None or subprocess.run(command[:2] + ["version"], capture_output=True).returncode:
        pytest.skip("docker compose is not installed here; the other tests parse the file themselves")
    subprocess.run(command, env={**os.environ, **variables}, check=True, timeout=60)
    refused = subprocess.run(command, env={"PATH": os.environ["PATH"]}, capture_output=True, check=False, timeout=60)
    assert refused.returncode, "it must ask for its secrets"
