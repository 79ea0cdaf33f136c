"""Another Unix user of the same machine tries to get in, or to disturb, while an experiment is measured: none succeeds.

Each try is made by a process of his; what he cannot even read, such as Kafka's client or Spark's jars, he is given.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from faultline.base.attempt import Attempt
from faultline.base.journal import read_journal
from faultline.base.machine_lock import HOLDS, machine_holder, pretenders
from faultline.base.secrets import read_secrets
from faultline.base.settings import Settings
from faultline.base.waiting import wait_until
from faultline.cluster.daemon import Supervisor
from faultline.cluster.services import master_state, spark_home
from tests.support.decoys import only_root
from tests.support.installation import Installation
from tests.support.stranger import Outcome, as_stranger, running_as_stranger

pytestmark = [only_root, pytest.mark.timeout(600)]
SOON_S = 4
# Of prctl(2).
PR_SET_NAME = 15
INTRUDER = Path(__file__).parents[1] / "support" / "Intruder.java"


@dataclass(frozen=True)
class Site:
    """An installation with an experiment in its window, and what a stranger may have found out about it."""

    settings: Settings
    attempt: Attempt
    topic: str
    driver_ui: str
    pids: dict[str, int]
    # Spark's jars and the intruder's class, where everybody can read them.
    tools: Path


@pytest.fixture(scope="module")
def site(shared_installation: Installation) -> Iterator[Site]:
    assert shared_installation.run("up").returncode == 0
    settings = shared_installation.settings
    # What keeps him out must be the installation's own rights, not those of the tests' folder.
    opened = [folder for folder in settings.home.parents if folder.is_relative_to(tempfile.gettempdir())]
    modes = {folder: folder.stat().st_mode for folder in opened}
    for folder in opened:
        folder.chmod(0o755)
    command = [*shared_installation.command("run"), "word_count", "fault=none", "duration_s=150", "rate=100"]
    with (
        tempfile.TemporaryDirectory() as tools,
        subprocess.Popen(
            command, env=shared_installation.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as run,
    ):
        try:
            yield _found(settings, run, _tools(Path(tools)))
            assert run.poll() is None or run.returncode == 0, "the experiment was not disturbed"
        finally:
            run.terminate()
            for folder, mode in modes.items():
                folder.chmod(mode)


def _found(settings: Settings, run: subprocess.Popen[bytes], tools: Path) -> Site:
    def in_window() -> Attempt | None:
        assert run.poll() is None, "the experiment ended before it was measured"
        attempts = sorted(settings.attempts.iterdir()) if settings.attempts.is_dir() else []
        last = Attempt(attempts[-1]) if attempts else None
        return (
            last if last and any(one.get("event") == "gate" for one in read_journal(last.conductor_journal)) else None
        )

    attempt = wait_until(in_window, timeout_s=240, what="the window")
    described = attempt.read()
    pids = Supervisor(settings).pids()
    return Site(settings, attempt, described["topics"]["input"], described["spark"]["ui"], pids, tools)


def _tools(folder: Path) -> Path:
    folder.chmod(0o755)
    (folder / "jars").mkdir()
    for jar in (spark_home() / "jars").glob("*.jar"):
        shutil.copyfile(jar, folder / "jars" / jar.name)
    java = shutil.which("javac")
    if java:
        subprocess.run([java, "-cp", f"{folder}/jars/*", "-d", str(folder), str(INTRUDER)], check=True)
    for path in folder.rglob("*"):
        path.chmod(0o755)
    return folder


# ---- Files ----


def _files(site: Site) -> dict[str, Path]:
    home, results = site.settings.home, site.settings.results
    return {
        "the secrets": home / "secrets" / "secrets.json", "Spark's secret": home / "secrets" / "spark.conf",
        "the workload's login": home / "secrets" / "workload.json",
        "the broker's settings": home / "kafka" / "server.properties",
        "Airflow's settings": home / "airflow" / "airflow.cfg", "the password": home / "airflow" / "passwords.json",
        "Airflow's database": home / "airflow" / "airflow.db", "the supervisor's settings": home / "supervisord.conf",
        "the instance's mark": home / "instance.json", "a service's log": home / "logs" / "kafka.log",
        "the attempt's description": site.attempt.folder / "attempt.json", "its ledger": site.attempt.ledger,
        "the list of attempts": results / "attempts", "the broker's data": home / "kafka" / "data" / "meta.properties",
    }  # fmt: skip


FILES = (
    "the secrets", "Spark's secret", "the workload's login", "the broker's settings", "Airflow's settings",
    "the password", "Airflow's database", "the supervisor's settings", "the instance's mark", "a service's log",
    "the attempt's description", "its ledger", "the list of attempts", "the broker's data",
)  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_reading(site: Site, name: str) -> None:
    path = _files(site)[name]
    assert path.exists(), path
    kept_out(as_stranger(lambda: os.listdir(path) if path.is_dir() else path.read_bytes()))


@pytest.mark.parametrize(
    "place", ["a record", "an attempt", "a ledger", "a stop file", "the state", "a topic's folder"]
)
def test_planting(site: Site, place: str) -> None:
    home, results = site.settings.home, site.settings.results
    path = {
        "a record": results / "records" / "x.json", "an attempt": results / "attempts" / "29990101T000000Z-000000",
        "a ledger": site.attempt.folder / "ledger.jsonl", "a stop file": site.attempt.stop_file,
        "the state": home / "ports.json", "a topic's folder": home / "kafka" / "data" / "x-0",
    }[place]  # fmt: skip
    kept_out(as_stranger(lambda: path.open("a").write("x")))


# ---- Kafka ----


def _client(address: str, **more: Any) -> dict[str, Any]:
    usual = {"bootstrap.servers": address, "log_level": 0, "socket.timeout.ms": 3000, "message.timeout.ms": 3000}
    return {**usual, **more}


GUESS = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "harness"}


def _listener(name: str) -> Callable[[Site], str]:
    return lambda site: f"127.0.0.1:{site.settings.ports[name]}"


def _producer(settings: dict[str, Any], topic: str) -> object:
    del settings["socket.timeout.ms"]
    producer, said = Producer(settings), []
    producer.produce(topic, b"x", on_delivery=lambda error, message: said.append(error))
    producer.flush(SOON_S)
    if not said or said[0] is not None:
        raise KafkaException(said)
    return "written"


def _consume(settings: dict[str, Any], topic: str) -> object:
    del settings["message.timeout.ms"]
    consumer = Consumer({**settings, "group.id": "x", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    message = consumer.poll(SOON_S)
    if message is None or message.error():
        raise KafkaException("nothing")
    return message.value()


def _all_done(futures: dict[Any, Any]) -> object:
    return [future.result(SOON_S) for future in futures.values()]


def _admin(act: Callable[[Any, str], object]) -> Callable[[Site], object]:
    def run(site: Site) -> object:
        settings = _client(site.settings.endpoints.kafka)
        del settings["message.timeout.ms"]
        return act(AdminClient(settings), site.topic)

    return run


KAFKA: dict[str, Callable[[Site], object]] = {
    "list topics": _admin(lambda admin, topic: admin.list_topics(timeout=SOON_S).topics),
    "make a topic": _admin(lambda admin, topic: _all_done(admin.create_topics([NewTopic("his", 1, 1)]))),
    "delete a topic": _admin(lambda admin, topic: _all_done(admin.delete_topics([topic]))),
    "read settings": _admin(
        lambda admin, topic: _all_done(admin.describe_configs([ConfigResource(ResourceType.BROKER, "1")]))
    ),
    "read a topic": lambda site: _consume(_client(site.settings.endpoints.kafka), site.topic),
    **{
        f"write by {name}": lambda site, name=name: _producer(_client(_listener(name)(site)), site.topic)  # type: ignore[misc]
        for name in ("kafka", "kafka_proxied", "kafka_gated", "kafka_controller")
    },
    "write with a guessed password": lambda site: _producer(
        _client(site.settings.endpoints.kafka, **GUESS, **{"sasl.password": "harness"}), site.topic
    ),
}


@pytest.mark.parametrize("name", KAFKA)
def test_kafka(site: Site, name: str) -> None:
    kept_out(as_stranger(lambda: KAFKA[name](site)))


# ---- Spark ----


def _java(site: Site, main: str, *arguments: str, **properties: str) -> str:
    told = [f"-D{key.replace('_', '.')}={value}" for key, value in properties.items()]
    opens = [f"--add-opens=java.base/{one}=ALL-UNNAMED" for one in ("java.lang", "java.nio", "sun.nio.ch", "java.util")]
    command = ["java", "-Xmx256m", "-cp", f"{site.tools}:{site.tools}/jars/*", *opens, *told, main, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False, cwd="/")
    return done.stdout + done.stderr


WRONG = {
    "spark_authenticate": "true", "spark_authenticate_secret": "guessed", "spark_network_crypto_enabled": "true",
}  # fmt: skip


@pytest.mark.parametrize("secret", [{}, WRONG], ids=["without a secret", "with a guessed one"])
def test_submitting_to_the_master(site: Site, secret: dict[str, str]) -> None:
    url = site.settings.endpoints.engine
    driver = ("launch", url, "file:///tmp/nothing.jar", "Main")
    as_stranger(lambda: _java(site, "org.apache.spark.deploy.Client", *driver, **secret), limit_s=100)
    state = master_state(site.settings)
    assert state is not None and not state["activedrivers"] and not state["completeddrivers"]


@pytest.mark.parametrize("secret", [{}, WRONG], ids=["without a secret", "with a guessed one"])
def test_calling_a_process_of_spark(site: Site, secret: dict[str, str]) -> None:
    if not (site.tools / "Intruder.class").exists():
        pytest.skip("javac is not installed: install a JDK to compile the intruder")
    ports = site.settings.ports
    driver = _driver_port(site)
    places = [
        f"Master@{ports['spark_master']}",
        f"Worker@{ports['spark_worker_1']}",
        f"Worker@{ports['spark_worker_2']}",
    ]
    places.append(f"CoarseGrainedScheduler@{driver}")
    said = as_stranger(lambda: _java(site, "Intruder", *places, **secret), limit_s=100).got or ""
    answers = [line for line in said.splitlines() if line.startswith(("IN ", "OUT "))]
    assert len(answers) == len(places) and not any(line.startswith("IN ") for line in answers), said


def test_the_intruder_gets_in_with_the_secret(site: Site) -> None:
    """So it is the secret that keeps him out."""
    if not (site.tools / "Intruder.class").exists():
        pytest.skip("javac is not installed: install a JDK to compile the intruder")
    closed = dict(line.split("=", 1) for line in (site.settings.secrets / "spark.conf").read_text().splitlines())
    own = {key.replace(".", "_"): value for key, value in closed.items()}
    assert f"IN Master@{site.settings.ports['spark_master']}" in _java(
        site, "Intruder", f"Master@{site.settings.ports['spark_master']}", **own
    )


def _driver_port(site: Site) -> int:
    """Of the driver's RPC, as its executors' command lines name it."""
    for process in psutil.process_iter(["cmdline"]):
        for part in process.info["cmdline"] or []:
            if part.startswith("spark://CoarseGrainedScheduler@") and site.attempt.id in " ".join(
                process.info["cmdline"]
            ):
                return int(part.rsplit(":", 1)[1])
    raise AssertionError("no executor of the experiment runs")


def _post(url: str, **form: str) -> object:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())
    with opener.open(url, urllib.parse.urlencode(form).encode(), timeout=10) as answer:
        return answer.status


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *arguments: Any) -> None:
        return None


PAGES: dict[str, Callable[[Site], object]] = {
    "kill an application": lambda site: _post(
        f"{site.settings.endpoints.engine_ui}/app/kill/", id=_application(site), terminate="true"
    ),
    "decommission the workers": lambda site: _post(
        f"{site.settings.endpoints.engine_ui}/workers/kill/", host="127.0.0.1"
    ),
    "kill a job": lambda site: _post(f"{site.driver_ui}/jobs/job/kill/", id="0"),
    "kill a stage": lambda site: _post(f"{site.driver_ui}/stages/stage/kill/", id="0"),
}


def _application(site: Site) -> str:
    state = master_state(site.settings)
    assert state is not None
    return str(state["activeapps"][0]["id"])  # type: ignore[index]


@pytest.mark.parametrize("name", PAGES)
def test_pages_of_spark_change_nothing(site: Site, name: str) -> None:
    before = master_state(site.settings)
    as_stranger(lambda: PAGES[name](site))
    after = master_state(site.settings)
    assert before is not None and after is not None
    assert [one["id"] for one in after["activeapps"]] == [one["id"] for one in before["activeapps"]]  # type: ignore[attr-defined]
    assert [one["state"] for one in after["workers"]] == ["ALIVE", "ALIVE"]  # type: ignore[attr-defined]


def test_pages_of_spark_show_no_secret(site: Site) -> None:
    secrets = every_secret(site.settings)

    def look() -> str:
        pages = [
            f"{site.driver_ui}/environment/",
            f"{site.driver_ui}/api/v1/applications/{_application(site)}/environment",
        ]
        pages += [site.settings.endpoints.engine_ui, f"{site.settings.endpoints.engine_ui}/environment/"]
        return "".join(_get(page) for page in pages)

    seen = as_stranger(look)
    assert seen.succeeded, seen.error
    assert not any(secret in (seen.got or "") for secret in secrets)


def _get(url: str) -> str:
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=10) as answer:
            return str(answer.read().decode(errors="replace"))
    except urllib.error.HTTPError:
        return ""


# ---- Airflow ----


def _api(site: Site, path: str, body: object = None, **headers: str) -> object:
    request = urllib.request.Request(
        site.settings.endpoints.airflow + path, None if body is None else json.dumps(body).encode(),
        {"Content-Type": "application/json", **headers},
    )  # fmt: skip
    with urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect()).open(
        request, timeout=10
    ) as answer:
        return answer.read()


UNSIGNED = "eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0.eyJzdWIiOiJhZG1pbiIsInJvbGUiOiJhZG1pbiIsImV4cCI6NDEwMjQ0NDgwMH0."
AIRFLOW: dict[str, Callable[[Site], object]] = {
    "read DAGs": lambda site: _api(site, "/api/v2/dags"),
    "start an experiment": lambda site: _api(site, "/api/v2/dags/experiment/dagRuns", {"logical_date": None}),
    "log in by a guess": lambda site: _api(site, "/auth/token", {"username": "admin", "password": "admin"}),
    "a token without a signature": lambda site: _api(site, "/api/v2/dags", Authorization=f"Bearer {UNSIGNED}"),
    "a token without a login": lambda site: _api(site, "/auth/token"),
    "read Connections": lambda site: _api(site, "/api/v2/connections"),
    "be a task": lambda site: _api(site, "/execution/variables/x"),
    "read results": lambda site: _api(site, "/faultline/"),
    "read a table": lambda site: _api(site, "/faultline/experiments.csv"),
    "read figures": lambda site: _api(site, "/faultline/metrics"),
}


@pytest.mark.parametrize("name", AIRFLOW)
def test_airflow(site: Site, name: str) -> None:
    kept_out(as_stranger(lambda: AIRFLOW[name](site)))


def test_the_proof_says_nothing_but_what_was_asked(site: Site) -> None:
    shown = as_stranger(lambda: _api(site, f"/faultline-proof/?challenge={'0' * 64}"))
    assert shown.succeeded and not any(secret in (shown.got or "") for secret in every_secret(site.settings))
    kept_out(as_stranger(lambda: _api(site, "/faultline-proof/?challenge=%00%2e%2e")))


# ---- Processes and sockets ----


def _of(site: Site, name: str) -> int:
    return site.pids[name]


PROCESSES: dict[str, Callable[[int], object]] = {
    "read its environment": lambda pid: Path(f"/proc/{pid}/environ").read_bytes(),
    "read its memory": lambda pid: Path(f"/proc/{pid}/mem").open("rb"),
    "read its files": lambda pid: os.listdir(f"/proc/{pid}/fd"),
    "end it": lambda pid: os.kill(pid, 15),
    "stop it": lambda pid: os.kill(pid, 19),
}


@pytest.mark.parametrize("name", PROCESSES)
def test_processes(site: Site, name: str) -> None:
    for service in ("kafka", "spark-worker-1", "airflow-scheduler"):
        kept_out(as_stranger(lambda service=service: PROCESSES[name](_of(site, service))))  # type: ignore[misc]


def test_command_lines_hold_no_secret(site: Site) -> None:
    def look() -> str:
        return "".join(Path(f"/proc/{pid}/cmdline").read_text(errors="replace") for pid in psutil.pids())

    seen = as_stranger(look)
    assert seen.succeeded and not any(secret in (seen.got or "") for secret in every_secret(site.settings))


@pytest.mark.parametrize("name", ["supervisor_socket", "session_socket"])
def test_sockets(site: Site, name: str) -> None:
    path = str(getattr(site.settings, name))
    assert Path(path).exists()
    kept_out(as_stranger(lambda: socket.socket(socket.AF_UNIX).connect(path)))


# ---- The machine's lock ----


def test_having_the_machine(site: Site) -> None:
    holder = machine_holder(site.settings.machine)
    assert holder is not None and holder.attempt == site.attempt.id

    def claim(pipe: Connection) -> None:
        # As any process of his may; the file of one that changed its user is root's.
        ctypes.CDLL(None).prctl(PR_SET_NAME, HOLDS.encode(), 0, 0, 0)
        pipe.send("said")
        time.sleep(60)

    with running_as_stranger(claim) as (pipe, pid):
        assert pipe.poll(30)
        assert any(line.startswith(f"pid {pid} of ") for line in pretenders()), "he is named"
        assert machine_holder(site.settings.machine) == holder, "and nobody waits for him"
    kept_out(as_stranger(lambda: Path(f"/proc/{holder.pid}/comm").write_text("python")))
    assert machine_holder(site.settings.machine) == holder


# ---- What is left behind ----


def test_nothing_that_an_experiment_leaves_holds_a_secret(site: Site) -> None:
    secrets = [one.encode() for one in every_secret(site.settings)]
    own = {site.settings.secrets, site.settings.airflow_home}
    kept = {site.settings.home / "kafka" / "server.properties"}
    found = []
    for root in (site.settings.results, site.settings.home):
        for path in root.rglob("*"):
            if path.is_file() and not path.is_symlink() and not own & set(path.parents) and path not in kept:
                content = path.read_bytes()
                found += [path for secret in secrets if secret in content]
    assert found == []


def every_secret(settings: Settings) -> list[str]:
    known = read_secrets(settings.secrets)
    airflow = json.loads((settings.airflow_home / "secrets.json").read_text())
    return [known.spark, known.proof, *known.kafka.values(), *map(str, airflow.values())]


def kept_out(outcome: Outcome) -> None:
    assert not outcome.succeeded, outcome.got
    assert "not done within" not in outcome.error, outcome.error
