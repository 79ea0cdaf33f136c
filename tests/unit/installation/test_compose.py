"""docker-compose.yaml and docker/ against the project: services, versions, ports, mounts, secrets, health."""

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
from collections.abc import Iterator
from contextlib import AbstractContextManager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from faultline import __version__
from faultline.engines.spark.shared_storage import RAM_DISK
from faultline.engines.spark.standalone import WORKER_MEMORY
from faultline.installation.airflow import DATABASE, PASSWORD, connections, requested_database
from faultline.installation.container_entrypoint import PREPARE
from faultline.installation.services import control_services, data_services
from faultline.system.child_environment import clean_environment
from faultline.system.process_ledger import HIGH_PRIORITY_NICENESS
from faultline.system.settings import DEFAULT_PORTS, HOST, ROOT, Settings
from faultline.system.ssh_hosts import check_ssh_host
from faultline.system.waiting import wait_until
from tests.support.pages_server import pages
from tests.support.scripts import script

FILE = ROOT / "docker-compose.yaml"
DOCKER = ROOT / "docker"
COMPOSE: dict[str, Any] = yaml.safe_load(FILE.read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (DOCKER / "Dockerfile").read_text().replace("\\\n", " ")
# Paths in the image, and the Settings of a container.
INSIDE = Settings(Path("/opt/faultline"), Path("/var/lib/faultline/state"), Path("/var/lib/faultline/results"))
EMBEDDED = {one.name: one for one in [*data_services(INSIDE, Path("java"), "0" * 16), *control_services(INSIDE)]}
WORKERS = [name for name in EMBEDDED if name.startswith("spark-worker")]
OURS = [*EMBEDDED, PREPARE, "machine"]
REQUIRED = re.compile(r"\$\{[A-Z_]+:\?[^}]+\}")


def mebibytes(text: str) -> int:
    return int(text[:-1]) * {"m": 1, "g": 1024}[text[-1]]


# ---- Services, images, versions ----


def test_each_service_of_the_embedded_system_has_a_container_that_becomes_it() -> None:
    assert set(SERVICES) == {*OURS, "postgres"}
    serve = ["python", "-P", "-m", "faultline.installation.container_entrypoint"]
    own = {name: ["/opt/faultline/docker/worker", name] for name in WORKERS}
    own["airflow-scheduler"] = ["/opt/faultline/docker/scheduler"]
    for name in EMBEDDED:
        wanted = own.get(name, [*serve, name])
        assert SERVICES[name]["command"][: len(wanted) if name in own else None] == wanted, name
    assert f'exec {" ".join(serve)} "$1"' in (DOCKER / "worker").read_text()
    assert f"{' '.join(serve)} airflow-scheduler &" in (DOCKER / "scheduler").read_text()
    assert f"exec {' '.join(serve)} {PREPARE}" in (DOCKER / "prepare").read_text()


def test_every_image_is_pinned_to_a_version() -> None:
    assert {SERVICES[name]["image"] for name in OURS} == {f"faultline:{__version__}"}
    bases = re.findall(r"^FROM (\S+)$", DOCKERFILE, re.MULTILINE)
    assert len(bases) == 1
    for image in (*bases, SERVICES["postgres"]["image"]):
        assert re.fullmatch(r"[a-z/-]+:\d+\.\d+(\.\d+)?-[a-z-]+", image), image


def test_the_image_is_made_from_the_locks_on_a_supported_python_and_java() -> None:
    version = re.search(r"^FROM python:(\d+\.\d+)\.\d+-slim", DOCKERFILE, re.MULTILINE)
    assert version and version[1] in (ROOT / "faultline").read_text()
    assert "openjdk-17-jre-headless" in DOCKERFILE
    assert "RUN FAULTLINE_HOME=/var/lib/faultline python include/faultline/bootstrap.py" in DOCKERFILE
    for variable, folder in {"FAULTLINE_HOME": INSIDE.home, "FAULTLINE_RESULTS": INSIDE.results}.items():
        assert f"{variable}={folder} " in DOCKERFILE
        # A volume takes its owner from the image's folder.
        assert re.search(rf"mkdir -p .*{folder}(\s|$)", DOCKERFILE, re.MULTILINE), folder
    assert f"WORKDIR {INSIDE.root}\n" in DOCKERFILE


def test_what_the_dockerfile_copies_exists_and_is_sent_to_the_builder() -> None:
    rules = (DOCKER / "Dockerfile.dockerignore").read_text().split("\n")
    assert not any("requirements-test" in text or "faultline test" in text for text in (*rules, DOCKERFILE))
    sent = [rule[1:] for rule in rules if rule.startswith("!")]
    assert "*" in rules
    for arguments in re.findall(r"^COPY (?:--\S+ )*(.+)$", DOCKERFILE, re.MULTILINE):
        for source in arguments.split()[:-1]:
            assert (ROOT / source).exists(), source
            assert any(fnmatch(source.rstrip("/"), rule) for rule in sent), f"{source} is not sent"
    build = SERVICES["machine"]["build"]
    assert (ROOT / build["context"] / build["dockerfile"]).is_file()
    assert [name for name, service in SERVICES.items() if "build" in service] == ["machine"]
    assert {SERVICES[name]["pull_policy"] for name in set(OURS) - {"machine"}} == {"never"}


def test_the_installer_runs_on_what_was_copied_before_it(tmp_path: Path) -> None:
    before, _, _ = DOCKERFILE.replace("\\\n", "").partition("python include/faultline/bootstrap.py")
    for arguments in re.findall(r"^COPY (?:--\S+ )*(.+)$", before, re.MULTILINE):
        *copied, target = arguments.split()
        assert target.endswith("/")
        for source in copied:
            (tmp_path / target).mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / source, tmp_path / target)
    # Alone with the standard library, as in the image at that moment.
    program = "import sys; sys.path.insert(0, 'include'); from faultline import bootstrap; print(bootstrap.ROOT)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == (str(tmp_path), "")


# ---- Network, processes, mounts ----


def test_all_share_the_network_and_the_processes_and_have_no_rights_beyond() -> None:
    for name in OURS:
        service = SERVICES[name]
        assert service["network_mode"] == "host" and "ports" not in service, name
        assert service.get("pid") == (None if name == "machine" else "service:machine"), name
        # setpriority(2): a limit of n reaches down to a niceness of 20 - n.
        assert 20 - service["ulimits"]["nice"] <= HIGH_PRIORITY_NICENESS, name
        assert service["cap_drop"] == ["ALL"] and "privileged" not in service
        assert service["security_opt"] == ["no-new-privileges:true"]
    assert SERVICES["machine"]["init"] is True, "orphaned processes are reaped"


def test_ports_are_the_projects_and_on_loopback() -> None:
    assert f"listen_addresses={HOST}" in SERVICES["postgres"]["command"]
    assert SERVICES["postgres"]["network_mode"] == "host"
    named = re.findall(r"(?<![\d.])1\d{4}(?!\d)", FILE.read_text())
    own = {"15432", "17122", "17222"}
    assert {int(port) for port in named if port not in own} <= set(DEFAULT_PORTS.values())
    assert not {int(port) for port in own} & set(DEFAULT_PORTS.values())


def test_health_checks_and_connections_ask_the_service_that_listens_there() -> None:
    ports = INSIDE.ports
    asked = {name: re.findall(r"1\d{4}", " ".join(map(str, SERVICES[name]["healthcheck"]["test"]))) for name in OURS
             if "healthcheck" in SERVICES[name]}  # fmt: skip
    wanted = {
        "kafka": ["kafka"], "spark-master": ["spark_master_ui"],
        "spark-worker-1": ["spark_master_ui", "spark_worker_1"],
        "spark-worker-2": ["spark_master_ui", "spark_worker_2"],
        **dict.fromkeys([name for name in asked if name.startswith("airflow")], ["airflow"]),
    }  # fmt: skip
    for name, keys in wanted.items():
        assert [int(port) for port in asked[name]][: len(keys)] == [ports[key] for key in keys], name
    known = connections(INSIDE)
    broker = json.loads(str(known["kafka_default"]["extra"]))["bootstrap.servers"]
    assert broker == f"{HOST}:{ports['kafka']}"
    spark = known["spark_default"]
    assert (spark["host"], spark["port"]) == (f"spark://{HOST}", ports["spark_master"])


def test_mounts_exist_in_the_repository_and_are_read_only() -> None:
    for name in set(OURS) - {"machine"}:
        mounts = SERVICES[name]["volumes"]
        whole = [mount for mount in mounts if isinstance(mount, dict)]
        bound = [mount for mount in whole if mount["type"] == "bind"]
        for mount in bound:
            assert mount["read_only"] is True
            assert (ROOT / mount["source"]).is_dir(), mount["source"]
            assert Path(mount["target"]) == INSIDE.root / mount["source"]
        code = ("benchmarks", "dags", "docker", "fault", "generators", "include", "plugins", "spark_jobs")
        assert [mount["source"] for mount in bound] == [f"./{folder}" for folder in code]
        # What executors, drivers and JVMs share on one host.
        shared = [f"scratch:{SERVICES[name]['environment']['SPARK_LOCAL_DIRS']}"]
        shared += ["class-data:/var/lib/faultline/venv/share/faultline"]
        own = [f"state:{INSIDE.home}", f"results:{INSIDE.results}"]
        assert [mount for mount in mounts if isinstance(mount, str)] == own + shared
        ram = {"type": "volume", "source": "ram", "target": str(RAM_DISK), "volume": {"nocopy": True}}
        assert [mount for mount in whole if mount not in bound] == [ram]
    assert set(COMPOSE["volumes"]) == {"state", "results", "postgres-data", "scratch", "class-data", "ram"}
    assert COMPOSE["volumes"]["ram"]["driver_opts"]["type"] == "tmpfs"


def test_services_get_the_path_of_their_local_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    place = SERVICES[WORKERS[0]]["environment"]["SPARK_LOCAL_DIRS"]
    monkeypatch.setenv("SPARK_LOCAL_DIRS", place)
    assert clean_environment()["SPARK_LOCAL_DIRS"] == place
    assert re.search(rf"mkdir -p .*{place}", DOCKERFILE), "a volume takes its owner from the image's folder"


# ---- Lifecycle of the services ----


def test_services_bound_their_logs_and_those_that_stay_have_health_checks_and_restart() -> None:
    for name, service in SERVICES.items():
        assert {"max-size", "max-file"} <= set(service["logging"]["options"]), name
        if name == PREPARE:
            assert service["restart"] == "no" and "healthcheck" not in service
            continue
        assert service["restart"] == "unless-stopped", name
        check = service["healthcheck"]
        assert check["test"][0] == "CMD" and {"interval", "timeout", "retries", "start_period"} <= set(check), name


def test_dependencies_wait_for_what_can_come_true() -> None:
    for name, service in SERVICES.items():
        for other, wait in service.get("depends_on", {}).items():
            wanted = "service_completed_successfully" if other == PREPARE else "service_healthy"
            assert wait == {"condition": wanted}, f"{name} on {other}"
    assert all(PREPARE in SERVICES[name]["depends_on"] for name in EMBEDDED)
    assert set(SERVICES[PREPARE]["depends_on"]) == {"machine", "postgres"}
    assert set(SERVICES["airflow-scheduler"]["depends_on"]) >= {"kafka", *WORKERS}


def test_scripts_that_are_started_exist_and_parse() -> None:
    started = [service.get("command", [""])[0] for service in SERVICES.values()]
    started += [service["healthcheck"]["test"][1] for service in SERVICES.values() if "healthcheck" in service]
    scripts = {Path(text).relative_to(INSIDE.root) for text in started if text.startswith(str(INSIDE.root))}
    assert len(scripts) == 4
    for name in (*scripts, Path("docker/make-secrets")):
        file = ROOT / name
        assert os.access(file, os.X_OK), name
        if file.read_text().startswith("#!/bin/sh"):
            subprocess.run(["sh", "-n", str(file)], check=True, timeout=120)
        else:
            compile(file.read_text(), str(file), "exec")


def test_a_killed_scheduler_is_started_again_and_a_stopped_one_is_not(tmp_path: Path) -> None:
    script(tmp_path / "python", f'echo "$$ $*" >>{tmp_path}/started; exec /bin/sleep 900')
    script(tmp_path / "sleep", "exit 0")
    path = f"{tmp_path}:{os.environ['PATH']}"
    scheduler = subprocess.Popen([str(DOCKER / "scheduler")], env={"PATH": path}, stderr=subprocess.DEVNULL)

    def started(count: int) -> list[str]:
        def lines() -> list[str]:
            return (tmp_path / "started").read_text().splitlines() if (tmp_path / "started").exists() else []

        return wait_until(lambda: lines()[count - 1 :] and lines(), timeout_s=120, what=f"start {count}")

    try:
        pid, *arguments = started(1)[0].split()
        assert arguments[-2:] == ["faultline.installation.container_entrypoint", "airflow-scheduler"]
        os.kill(int(pid), signal.SIGKILL)
        second = int(started(2)[1].split()[0])
        scheduler.terminate()
        assert scheduler.wait(120) == 0
        with pytest.raises(ProcessLookupError):
            os.kill(second, 0)
    finally:
        scheduler.kill()
        scheduler.wait()


# ---- Settings ----


def test_workers_are_limited_alike_and_offer_less_than_their_limit() -> None:
    kept = ("cpus", "mem_limit", "memswap_limit", "secrets", "volumes", "environment")
    first, *others = (SERVICES[name] for name in WORKERS)
    for other in others:
        assert {key: other[key] for key in kept} == {key: first[key] for key in kept}
    offered = int(first["environment"][WORKER_MEMORY])
    daemon = EMBEDDED[WORKERS[0]].environment["SPARK_DAEMON_MEMORY"]
    # Two executors of 384 MiB overhead each, in addition to heap and worker.
    assert offered + mebibytes(daemon) + 2 * 384 <= mebibytes(first["mem_limit"])
    assert first["mem_limit"] == first["memswap_limit"]
    # The master needs the capacity of the workers to place executors.
    assert SERVICES["airflow-scheduler"]["environment"][WORKER_MEMORY] == first["environment"][WORKER_MEMORY]


def test_the_database_is_the_one_that_prepare_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    given = SERVICES["postgres"]["environment"]
    address = SERVICES[PREPARE]["environment"][DATABASE]
    outside = f"{HOST}:{given['PGPORT']}"
    assert f"--port={given['PGPORT']}" in SERVICES["postgres"]["healthcheck"]["test"]
    user, database = f"{given['POSTGRES_USER']}:{given['POSTGRES_PASSWORD']}", given["POSTGRES_DB"]
    assert address == f"postgresql://{user}@{outside}/{database}"
    monkeypatch.setenv(DATABASE, REQUIRED.sub("secret", address))
    assert requested_database() == f"postgresql+psycopg2://faultline:secret@{outside}/airflow"
    assert [name for name in OURS if DATABASE in SERVICES[name].get("environment", {})] == [PREPARE]
    assert PASSWORD in SERVICES[PREPARE]["environment"]


def test_the_example_of_ssh_hosts_reaches_a_workers_sshd(tmp_path: Path) -> None:
    (host,) = json.loads((DOCKER / "ssh_hosts.json").read_text()).values()
    assert str(host["port"]) == SERVICES[WORKERS[0]]["command"][2]
    # The users of the file, and the check before anything starts.
    for name in ("airflow-scheduler", PREPARE):
        assert {host["key_file"], host["known_hosts"]} == {f"/run/secrets/{one}" for one in SERVICES[name]["secrets"]}
    (tmp_path / "key").touch(0o600)
    keys = {"key_file": str(tmp_path / "key"), "known_hosts": str(tmp_path / "key")}
    assert check_ssh_host("example", {**host, **keys})["user"] == "faultline"


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


# Optional variables: sizes, schedules, alert recipients, waiting times.
OPTIONAL = ("WORKER_CPUS", "NIGHTLY_SCHEDULE", "SPEED_SCHEDULE", "STEAL_WAIT_S")
HARMLESS = tuple(f"${{FAULTLINE_{name}:-" for name in OPTIONAL)


def test_no_password_has_a_default() -> None:
    for path, text in strings(COMPOSE):
        for variable in re.findall(r"\$\{[^}]*\}?", text):
            assert REQUIRED.fullmatch(variable) or variable.startswith(HARMLESS), f"{path}: {text}"
        if re.search(r"(PASSWORD|SECRET|SECRET_KEY|FERNET_KEY|TOKEN)$", path):
            assert REQUIRED.fullmatch(text), f"{path}: {text}"
        assert not re.search(r"://[^/\s:]+:(?!\$\{)[^@/\s]+@", text), f"{path}: {text}"


def test_keys_come_from_files_that_the_environment_names() -> None:
    for name, secret in COMPOSE["secrets"].items():
        assert REQUIRED.match(secret["file"]), name
    assert SERVICES[WORKERS[0]]["secrets"] == ["ssh_authorized_key", "ssh_host_key"]
    holders = [name for name, service in SERVICES.items() if "ssh_key" in service.get("secrets", [])]
    assert holders == [PREPARE, "airflow-scheduler"]


def test_sshd_takes_one_user_by_key_only() -> None:
    lines = (DOCKER / "sshd_config").read_text().splitlines()
    config = dict(line.split(" ", 1) for line in lines if line and not line.startswith("#"))
    no = ("PasswordAuthentication", "KbdInteractiveAuthentication", "PermitEmptyPasswords", "PermitRootLogin", "UsePAM")
    assert {config[key] for key in no} == {"no"}
    assert config["AuthenticationMethods"] == "publickey" and config["AllowUsers"] == "faultline"
    assert config["AuthorizedKeysFile"] == "/run/secrets/ssh_authorized_key"
    assert config["ListenAddress"] == HOST and "Port" not in config
    ports = [SERVICES[name]["command"][2] for name in WORKERS]
    assert ports == [SERVICES[name]["healthcheck"]["test"][-1] for name in WORKERS] and len(set(ports)) == len(WORKERS)


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen makes the keys; install openssh-client")
def test_make_secrets_gives_all_that_is_asked_for_and_keeps_it(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"

    def make() -> dict[str, bytes]:
        environment = {**os.environ, "FAULTLINE_SECRETS": str(folder)}
        subprocess.run([str(DOCKER / "make-secrets")], env=environment, check=True, capture_output=True, timeout=120)
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    made = make()
    assert make() == made
    given = dict(line.split("=", 1) for line in made["env"].decode().splitlines())
    assert set(given) == set(re.findall(r"\$\{([A-Z_]+):\?", FILE.read_text()))
    assert all(given.values())
    assert re.fullmatch(r"[0-9a-f]{48}", given["FAULTLINE_POSTGRES_PASSWORD"])
    assert {Path(secret["file"].split("}")[1]).name for secret in COMPOSE["secrets"].values()} <= set(made)
    hosts = [line.split()[0] for line in made["ssh_known_hosts"].decode().splitlines()]
    assert hosts == [f"[{HOST}]:{SERVICES[name]['command'][2]}" for name in WORKERS]
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())


# ---- The health check ----


def answering(document: object) -> AbstractContextManager[str]:
    """Serve the document at every path and return the address."""
    return pages(lambda _: json.dumps(document))


def healthy(*arguments: str) -> bool:
    command = [sys.executable, "-IS", str(DOCKER / "healthcheck"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
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


def test_a_port_that_listens_and_a_worker_that_master_and_sshd_know_are_healthy() -> None:
    def greet(server: socket.socket) -> None:
        with server.accept()[0] as connection:
            connection.sendall(b"SSH-2.0-test\r\n")

    with socket.create_server((HOST, 0)) as server:
        port = str(server.getsockname()[1])
        thread = threading.Thread(target=greet, args=(server,))
        thread.start()
        with answering({"workers": [{"port": 17081, "state": "ALIVE"}]}) as url:
            assert healthy("spark-worker", url, "17081", port)
            assert not healthy("spark-worker", url, "17082", port)
        thread.join()
        with answering({"workers": [{"port": 17081, "state": "DEAD"}]}) as url:
            assert not healthy("spark-worker", url, "17081", port)
        assert healthy("port", port)
    with answering({"workers": [{"port": 17081, "state": "ALIVE"}]}) as url:
        assert not healthy("port", port) and not healthy("spark-worker", url, "17081", port)


# ---- Compose itself ----


def test_compose_accepts_the_file() -> None:
    variables = dict.fromkeys(re.findall(r"\$\{([A-Z_]+):\?", FILE.read_text()), "1")
    command = ["docker", "compose", "--file", str(FILE), "config", "--quiet"]
    if shutil.which("docker") is None or subprocess.run(command[:2] + ["version"], capture_output=True).returncode:
        pytest.skip("docker compose is not installed here; the other tests parse the file themselves")
    subprocess.run(command, env={**os.environ, **variables}, check=True, timeout=60)
    refused = subprocess.run(command, env={"PATH": os.environ["PATH"]}, capture_output=True, check=False, timeout=60)
    assert refused.returncode, "it must ask for its secrets"
