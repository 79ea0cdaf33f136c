"""Attacks of an unprivileged local user during an experiment: all fail.

Each attempt runs in a process of that user, which gets unreadable tools such as Kafka's client and Spark's jars. Tests
assert the reason of the refusal. If an attempt could fail otherwise, a second test makes it with the credentials.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
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
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from faultline.engines.spark.settings import driver_settings
from faultline.experiment.attempt import Attempt
from faultline.experiment.attempt_plan import read_plan
from faultline.installation.spark import master_state, spark_home, spark_submit
from faultline.installation.supervisord import Supervisor
from faultline.records.find import find_record
from faultline.system.journal import read_journal
from faultline.system.locks import HOLDS, MachineLock, false_lock_holders
from faultline.system.secrets import FILE, HARNESS, USERS, jaas_file, login_file, read_secrets
from faultline.system.settings import Settings
from faultline.system.waiting import wait_until
from generators.kafka_credentials import read_credentials
from tests.support.decoys import only_root
from tests.support.installation import BUSY_MACHINE_REASONS, Installation
from tests.support.java import compile_for_spark
from tests.support.listeners import BROKERS, CONTROLLERS, describe_cluster
from tests.support.other_user import Outcome, as_other_user, running_as_other_user
from tests.support.secret_search import SHARED, contents, holding

pytestmark = [only_root, pytest.mark.thorough, pytest.mark.timeout(1800)]
SOON_S = 4
DENIED = "PermissionError"
# Errors of Spark's RPC.
REFUSED = "Unknown challenge message|New auth protocol failed"
# Option of prctl(2).
PR_SET_NAME = 15
INTRUDER = Path(__file__).parents[1] / "support" / "Intruder.java"


@dataclass(frozen=True)
class Site:
    """Installation with an experiment in its measured window, and public facts about it."""

    settings: Settings
    attempt: Attempt
    topic: str
    driver_ui: str
    pids: dict[str, int]
    # World-readable copy of Spark's jars and of the attacker's class.
    tools: Path
    run: subprocess.Popen[bytes]
    # In seconds since the epoch.
    since: float


@pytest.fixture(scope="module")
def site(shared_installation: Installation) -> Iterator[Site]:
    since = time.time()
    assert shared_installation.run("up").returncode == 0
    settings = shared_installation.settings
    # The permissions of the installation must protect it, not those of the test folder.
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
            yield _site_of(settings, run, _tools(Path(tools)), since)
        finally:
            run.terminate()
            for folder, mode in modes.items():
                folder.chmod(mode)


@pytest.fixture(scope="module")
def ended(site: Site) -> Site:
    """Site after the end of the experiment, with running services."""
    site.run.wait(300)
    wait_until(lambda: site.attempt.closed.exists(), timeout_s=60, what="the end of the teardown")
    return site


def _site_of(settings: Settings, run: subprocess.Popen[bytes], tools: Path, since: float) -> Site:
    def in_window() -> Attempt | None:
        assert run.poll() is None, "the experiment ended before it was measured"
        attempts = sorted(settings.attempts.iterdir()) if settings.attempts.is_dir() else []
        last = Attempt(attempts[-1]) if attempts else None
        return (
            last if last and any(one.get("event") == "gate" for one in read_journal(last.conductor_journal)) else None
        )

    attempt = wait_until(in_window, timeout_s=240, what="the window")
    plan, pids = read_plan(attempt), Supervisor(settings).pids()
    return Site(settings, attempt, plan.topics["input"].name, plan.engine.addresses["ui"], pids, tools, run, since)


def _tools(folder: Path) -> Path:
    folder.chmod(0o755)
    (folder / "jars").mkdir()
    for jar in (spark_home() / "jars").glob("*.jar"):
        shutil.copyfile(jar, folder / "jars" / jar.name)
    compile_for_spark(INTRUDER, folder)
    for path in folder.rglob("*"):
        path.chmod(0o755)
    return folder


# ---- Machine lock ----


def test_the_machine_lock(site: Site) -> None:
    holder = MachineLock(site.settings.machine).holder()
    assert holder is not None and holder.attempt == site.attempt.id

    def claim(pipe: Connection) -> None:
        # Through prctl, because /proc/PID/comm belongs to root after a change of the user.
        ctypes.CDLL(None).prctl(PR_SET_NAME, HOLDS.encode(), 0, 0, 0)
        pipe.send("claimed")
        time.sleep(900)

    with running_as_other_user(claim) as (pipe, pid):
        assert pipe.poll(120)
        assert any(f" pid {pid} of " in line for line in false_lock_holders()), "it is reported"
        assert MachineLock(site.settings.machine).holder() == holder, "and ignored"
    assert_refused(as_other_user(lambda: Path(f"/proc/{holder.pid}/comm").write_text("python")), DENIED)
    assert MachineLock(site.settings.machine).holder() == holder


# ---- Spark ----


def _java(site: Site, main: str, *arguments: str, **properties: str) -> str:
    options = [f"-D{key.replace('_', '.')}={value}" for key, value in properties.items()]
    opens = [f"--add-opens=java.base/{one}=ALL-UNNAMED" for one in ("java.lang", "java.nio", "sun.nio.ch", "java.util")]
    command = ["java", "-Xmx256m", "-cp", f"{site.tools}:{site.tools}/jars/*", *opens, *options, main, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False, cwd="/")
    return done.stdout + done.stderr


WRONG = {
    "spark_authenticate": "true", "spark_authenticate_secret": "guessed", "spark_network_crypto_enabled": "true",
}  # fmt: skip


SECRETS = pytest.mark.parametrize("secret", [{}, WRONG], ids=["without a secret", "with a guessed one"])


def _own(site: Site) -> dict[str, str]:
    """Return the Spark secret of the installation."""
    lines = (site.settings.secrets / "spark.conf").read_text().splitlines()
    return {key.replace(".", "_"): value for key, value in (line.split("=", 1) for line in lines)}


def _launch(site: Site, secret: dict[str, str]) -> str:
    """Submit a driver that no worker can start, and return the output of Spark's client."""
    driver = ("launch", site.settings.endpoints.engine, "file:///nothing/there.jar", "Main")
    return _java(site, "org.apache.spark.deploy.Client", *driver, **secret)


def _drivers(site: Site) -> list[object]:
    state = master_state(site.settings)
    assert state is not None
    return [*state["activedrivers"], *state["completeddrivers"]]  # type: ignore[misc]


@SECRETS
def test_submitting_to_the_master(site: Site, secret: dict[str, str]) -> None:
    before = _drivers(site)
    outcome = as_other_user(lambda: _launch(site, secret), limit_s=100)
    assert re.search(REFUSED, outcome.got or ""), outcome
    assert _drivers(site) == before


def test_submitting_with_the_secret_succeeds(site: Site) -> None:
    before = _drivers(site)
    output = _launch(site, _own(site))
    assert "Driver successfully submitted" in output and len(_drivers(site)) == len(before) + 1, output


@SECRETS
def test_calling_a_process_of_spark(site: Site, secret: dict[str, str]) -> None:
    places = _ports(site)
    output = as_other_user(lambda: _java(site, "Intruder", *places, **secret), limit_s=100).got or ""
    answers = [line for line in output.splitlines() if line.startswith(("IN ", "OUT "))]
    assert [line.split()[:2] for line in answers] == [["OUT", place] for place in places], output


def test_a_call_with_the_secret_succeeds(site: Site) -> None:
    output = _java(site, "Intruder", *_ports(site), **_own(site))
    assert [f"IN {place}" for place in _ports(site)] == [line for line in output.splitlines() if line[:2] == "IN"], (
        output
    )


def _ports(site: Site) -> list[str]:
    ports = site.settings.ports
    workers = [f"Worker@{ports[f'spark_worker_{number}']}" for number in (1, 2)]
    return [f"Master@{ports['spark_master']}", *workers, f"CoarseGrainedScheduler@{_driver_port(site)}"]


def _driver_port(site: Site) -> int:
    """Return the RPC port of the driver, read from command lines of its executors."""
    for process in psutil.process_iter(["cmdline"]):
        for part in process.info["cmdline"] or []:
            if part.startswith("spark://CoarseGrainedScheduler@") and site.attempt.id in " ".join(
                process.info["cmdline"]
            ):
                return int(part.rsplit(":", 1)[1])
    raise AssertionError("no executor of the experiment runs")


def _post(url: str, **form: str) -> object:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())
    with opener.open(url, urllib.parse.urlencode(form).encode(), timeout=120) as answer:
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
}


def _application(site: Site) -> str:
    state = master_state(site.settings)
    assert state is not None
    return str(state["activeapps"][0]["id"])  # type: ignore[index]


@pytest.mark.parametrize("name", PAGES)
def test_pages_of_spark_change_nothing(site: Site, name: str) -> None:
    before = master_state(site.settings)
    assert_refused(as_other_user(lambda: PAGES[name](site)), "HTTP Error 405")
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
        texts = [_get(page) for page in pages]
        assert all(texts), list(map(len, texts))
        return "".join(texts)

    seen = as_other_user(look)
    assert seen.succeeded and "spark.app.name" in (seen.got or ""), seen.error
    assert not any(secret in (seen.got or "") for secret in secrets)


def _get(url: str) -> str:
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=120) as answer:
            return str(answer.read().decode(errors="replace"))
    except urllib.error.HTTPError:
        return ""


# Its job of one stage runs until it is killed.
LASTING = """
import time
from pyspark.sql import SparkSession
context = SparkSession.builder.getOrCreate().sparkContext
print(context.uiWebUrl, context.applicationId, flush=True)
context.parallelize([0], 1).foreach(lambda _: time.sleep(600))
"""


@pytest.mark.parametrize("what", ["jobs/job", "stages/stage"])
@pytest.mark.parametrize("conf", [{}, {"spark.ui.killEnabled": "true"}], ids=["default", "kill enabled"])
def test_a_page_of_spark_kills_nothing_that_runs(site: Site, tmp_path: Path, conf: dict[str, str], what: str) -> None:
    """The job survives, but ends if its driver enables kills; the page responds alike in both cases."""
    program = tmp_path / "lasting.py"
    program.write_text(LASTING)
    command = spark_submit(site.settings, {**driver_settings("127.0.0.1"), **conf}, program, master="local[1]")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as driver:
        try:
            assert driver.stdout is not None
            ui, application = driver.stdout.readline().split()

            def is_in(status: str) -> bool:
                return bool(json.loads(_get(f"{ui}/api/v1/applications/{application}/stages?status={status}") or "[]"))

            wait_until(lambda: is_in("active"), timeout_s=60, what="the stage")
            assert_refused(as_other_user(lambda: _post(f"{ui}/{what}/kill/", id="0")), "HTTP Error 302")
            if conf:
                wait_until(lambda: is_in("failed"), timeout_s=120, what="its end")
            else:
                time.sleep(1)
                assert is_in("active") and driver.poll() is None
        finally:
            driver.kill()


# ---- Kafka ----


@dataclass(frozen=True)
class Caller:
    """Kafka caller: client settings, topic, and time limit in seconds."""

    settings: dict[str, Any]
    topic: str
    limit_s: float

    def await_results(self, ask: Callable[[AdminClient], dict[Any, Any]]) -> object:
        """Return the results of an admin client.

        The client must exist until then, because its end aborts requests, which looks like a refusal.
        """
        admin = AdminClient(self.settings)
        return [future.result(self.limit_s) for future in ask(admin).values()]


class NoTransfer(Exception):
    """Raised if nothing was written or read."""


def _make(caller: Caller) -> object:
    return caller.await_results(lambda admin: admin.create_topics([NewTopic(caller.topic, 1, 1)]))


def _delete(caller: Caller) -> object:
    return caller.await_results(lambda admin: admin.delete_topics([caller.topic]))


def _configs(caller: Caller) -> object:
    return caller.await_results(lambda admin: admin.describe_configs([ConfigResource(ResourceType.BROKER, "1")]))


def _write(caller: Caller) -> object:
    errors: list[Any] = []
    producer = Producer({**caller.settings, "message.timeout.ms": round(caller.limit_s * 1000)})
    producer.produce(caller.topic, b"x", on_delivery=lambda error, message: errors.append(error))
    producer.flush(2 * caller.limit_s)
    if errors != [None]:
        raise NoTransfer(errors)
    return "written"


def _read(caller: Caller) -> object:
    # No group membership, which could be refused by itself.
    consumer = Consumer({**caller.settings, "group.id": "x"})
    consumer.assign([TopicPartition(caller.topic, 0, OFFSET_BEGINNING)])
    message = consumer.poll(caller.limit_s)
    if message is None or message.error():
        raise NoTransfer("nothing was read")
    return message.value()


# Each can succeed in this order.
KAFKA: dict[str, Callable[[Caller], object]] = {
    "make a topic": _make,
    "list topics": lambda caller: AdminClient(caller.settings).list_topics(timeout=caller.limit_s).topics,
    "read settings": _configs,
    "write": _write,
    "read a topic": _read,
    "delete a topic": _delete,
}
GUESS = {
    "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "harness",
    "sasl.password": "harness",
}  # fmt: skip


@pytest.mark.parametrize("login", [{}, GUESS], ids=["without a login", "with a guessed password"])
@pytest.mark.parametrize("name", KAFKA)
def test_kafka(site: Site, name: str, login: dict[str, str]) -> None:
    topic = "foreign" if name == "make a topic" else site.topic
    caller = Caller({"bootstrap.servers": site.settings.endpoints.kafka, "log_level": 0, **login}, topic, SOON_S)
    assert_refused(
        as_other_user(lambda: KAFKA[name](caller)), "^(?!.*_DESTROY).*(KafkaException|NoTransfer|TimeoutError)"
    )


def test_kafka_calls_with_the_credentials_of_the_harness_succeed(site: Site) -> None:
    login = read_credentials(login_file(site.settings.secrets, HARNESS))
    caller = Caller({"bootstrap.servers": site.settings.endpoints.kafka, **login}, "ours", 30)
    got = {name: act(caller) for name, act in KAFKA.items()}
    assert "ours" in got["list topics"] and got["read a topic"] == b"x"  # type: ignore[operator]


@pytest.mark.parametrize("name", ["kafka", "kafka_proxied", "kafka_gated", "kafka_controller"])
def test_every_listener_of_kafka_authenticates(site: Site, name: str) -> None:
    port = site.settings.ports[name]
    kind = CONTROLLERS if name == "kafka_controller" else BROKERS
    properties = (site.settings.home / "kafka" / "data" / "meta.properties").read_text()
    cluster = dict(line.split("=", 1) for line in properties.splitlines() if "=" in line)["cluster.id"].encode()
    assert_refused(as_other_user(lambda: describe_cluster(port, endpoints=kind)), "IncompleteReadError")
    wrong = (HARNESS, "harness")
    assert_refused(as_other_user(lambda: describe_cluster(port, endpoints=kind, login=wrong)), "refuses the login")
    # With the password, the same requests succeed.
    login = (HARNESS, read_secrets(site.settings.secrets).kafka[HARNESS])
    assert cluster in describe_cluster(port, endpoints=kind, login=login)


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
    assert_refused(as_other_user(lambda: os.listdir(path) if path.is_dir() else path.read_bytes()), DENIED)


@pytest.mark.parametrize(
    "place", ["a record", "an attempt", "a ledger", "a stop file", "the state", "a topic's folder"]
)
def test_writing(site: Site, place: str) -> None:
    home, results = site.settings.home, site.settings.results
    path = {
        "a record": results / "records" / "x.json", "an attempt": results / "attempts" / "29990101T000000Z-000000",
        "a ledger": site.attempt.folder / "ledger.jsonl", "a stop file": site.attempt.stop_file,
        "the state": home / "ports.json", "a topic's folder": home / "kafka" / "data" / "x-0",
    }[place]  # fmt: skip
    assert_refused(as_other_user(lambda: path.open("a").write("x")), DENIED)


# ---- Airflow ----


def _api(site: Site, path: str, body: object = None, **headers: str) -> object:
    request = urllib.request.Request(
        site.settings.endpoints.airflow + path, None if body is None else json.dumps(body).encode(),
        {"Content-Type": "application/json", **headers},
    )  # fmt: skip
    with urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect()).open(
        request, timeout=120
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
    assert_refused(as_other_user(lambda: AIRFLOW[name](site)), "HTTP Error 40[13]|HTTP Error 30[27]")


def test_the_server_proof_answers_only_its_challenge(site: Site) -> None:
    shown = as_other_user(lambda: _api(site, f"/faultline-proof/?challenge={'0' * 64}"))
    assert shown.succeeded and not any(secret in (shown.got or "") for secret in every_secret(site.settings))
    assert_refused(as_other_user(lambda: _api(site, "/faultline-proof/?challenge=%00%2e%2e")), "HTTP Error 4")


# ---- Processes and sockets ----


def _pid_of(site: Site, name: str) -> int:
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
        assert_refused(as_other_user(lambda service=service: PROCESSES[name](_pid_of(site, service))), DENIED)  # type: ignore[misc]


def test_command_lines_hold_no_secret(site: Site) -> None:
    def look() -> str:
        # Processes that ended meanwhile are skipped.
        return " ".join(word for one in psutil.process_iter(["cmdline"]) for word in one.info["cmdline"] or [])

    seen = as_other_user(look)
    assert seen.succeeded and "kafka.Kafka" in (seen.got or ""), "command lines are readable"
    assert not any(secret in (seen.got or "") for secret in every_secret(site.settings))


@pytest.mark.parametrize("name", ["supervisor_socket", "session_socket"])
def test_sockets(site: Site, name: str) -> None:
    path = str(getattr(site.settings, name))
    assert Path(path).exists()
    assert_refused(as_other_user(lambda: socket.socket(socket.AF_UNIX).connect(path)), DENIED)


# ---- Leftovers ----


def test_the_experiment_was_not_disturbed(ended: Site) -> None:
    record, _ = find_record(ended.attempt.id, ended.settings)
    assert record.status in ("valid", "unmet", "invalid"), record.reasons
    assert all(reason.startswith(BUSY_MACHINE_REASONS) for reason in record.reasons)


def test_nothing_that_an_experiment_leaves_holds_a_secret(
    ended: Site, shared_installation: Installation, tmp_path: Path
) -> None:
    settings, bundle = ended.settings, tmp_path / "all.tar.xz"
    done = shared_installation.run("results", "--bundle", str(bundle))
    assert done.returncode == 0, done.stderr
    assert any(ended.attempt.id.encode() in content for content in contents(bundle)), "the search sees inside"
    secrets = every_secret(settings)
    assert all(len(secret) > 12 for secret in secrets)
    logins = [file(settings.secrets, user) for user in USERS for file in (login_file, jaas_file)]
    own = {
        settings.secrets / FILE, settings.secrets / "spark.conf", *logins,
        settings.home / "kafka" / "server.properties",
        *(settings.airflow_home / name for name in ("secrets.json", "airflow.cfg", "passwords.json")),
    }  # fmt: skip
    # The search finds the private files, so it would find others.
    found = holding(secrets, (settings.results, settings.home, tmp_path)) | holding(secrets, SHARED, since=ended.since)
    assert found == own
    assert {path.stat().st_mode & 0o777 for path in own} == {0o600}


def every_secret(settings: Settings) -> list[str]:
    known = read_secrets(settings.secrets)
    airflow = json.loads((settings.airflow_home / "secrets.json").read_text())
    return [known.spark, known.proof, *known.kafka.values(), *map(str, airflow.values())]


def assert_refused(outcome: Outcome, by: str) -> None:
    """Assert a refusal whose error matches `by`."""
    assert not outcome.succeeded, outcome.got
    assert re.search(by, outcome.error), outcome.error
