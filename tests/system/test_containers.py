"""docker-compose.yaml under podman: build, up, a sweep with kills, a kill of all containers, up, down."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from faultline.installation.airflow import USER
from faultline.records.record import committed_schema
from faultline.system.process_ledger import HIGH_PRIORITY_NICENESS
from faultline.system.settings import load_settings
from tests.support.containers import Containers, new_containers, require_podman
from tests.support.installation import BUSY_MACHINE_REASONS

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(5400)]

MATRIX, SWEEP = "recovery", "test_containers"
# Processes in their own container, and in that of another service.
VICTIMS = ("executor", "worker", "driver", "kafka")
FORM = {
    "workload": "word_count_python", "fault": list(VICTIMS), "checkpoint_interval_s": [1.0], "rate": 100.0,
    "warmup_s": 10.0, "state_mb": 0.5, "repetitions": 1, "max_measurements": 2,
}  # fmt: skip
SWEEP_S = 3600.0
# Runs in the container of the scheduler. Arguments: DAG, id and form of a run.
PROGRAM = """
import json, sys, time
import psutil
from faultline.system.settings import load_settings
from faultline.orchestration.airflow_api import FINISHED, AirflowApi
from faultline.cli.sweep_runner import await_dags
from faultline.records.store import Store

dag, run_id, form = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
settings, nice = load_settings(), set()
api = AirflowApi(settings)
await_dags(api, "experiment", dag)
if form:
    api.trigger(dag, form, run_id=run_id)
while api.run_state(dag, run_id) not in FINISHED:
    for process in psutil.process_iter(["cmdline", "nice"]):
        if "generators" in (process.info["cmdline"] or ()):
            nice.add(process.info["nice"])
    time.sleep(1)
records = [one.as_dict() for one in Store(settings.results).query(sweep=run_id)]
print(json.dumps({"records": records, "nice": sorted(nice)}))
"""


# Registers the services in containers as a target: addresses, credentials of the harness, a shared folder.
TARGET = """
import json, subprocess, sys
from pathlib import Path
from faultline.system.files import write_private
from faultline.system.kafka import kafka_client
from faultline.system.secrets import read_secrets
from faultline.system.settings import load_settings
from faultline.engines.spark.settings import AUTHENTICATION

settings = load_settings()
there, folder, shared = settings.endpoints, settings.home / "of-a-target", settings.results / "shared"
folder.mkdir(mode=0o700)
shared.mkdir()
conf = {key: value for key, value in AUTHENTICATION.items() if not key.startswith("spark.authenticate")}
write_private(folder / "kafka.json", json.dumps(kafka_client(there.kafka, secrets=settings.secrets)))
write_private(folder / "spark.json", json.dumps({"secret": read_secrets(settings.secrets).spark, "ui": there.engine_ui,
                                                 "conf": conf}))

def faultline(*words):
    return subprocess.run([sys.executable, "-P", "-m", "faultline", "target", *words], capture_output=True, text=True)

calls = [faultline("add", "compose", "--kafka", str(folder / "kafka.json"), "--spark", there.engine,
                  "--spark-file", str(folder / "spark.json"), "--storage", str(shared)),
        faultline("check", "compose"), faultline("remove", "compose")]
print(json.dumps([[one.returncode, one.stdout, one.stderr] for one in calls]))
"""


@pytest.fixture(scope="module")
def containers() -> Iterator[Containers]:
    """Running system of containers."""
    require_podman()
    # Created once. Podman needs a short path for mounts.
    cache = load_settings().home / "cache" / "containers"
    with new_containers(cache, Path(tempfile.mkdtemp(prefix="faultline-containers-"))) as made:
        made.up()
        yield made


@pytest.fixture(scope="module")
def measured(containers: Containers) -> dict[str, Any]:
    """Records of the sweep, and the niceness values of its generators."""
    found: dict[str, Any] = containers.python(PROGRAM, MATRIX, SWEEP, json.dumps(FORM), timeout_s=SWEEP_S)
    return found


def counted(measured: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the records with an audit."""
    return [one for one in measured["records"] if one["metrics"]["audit"]["expected"] is not None]


def test_counts_are_exact_whatever_container_the_victim_was_in(measured: dict[str, Any]) -> None:
    harvested = counted(measured)
    for record in measured["records"]:
        jsonschema.validate(record, committed_schema())
        # Other work on the machine makes records invalid, but not wrong.
        busy = all(reason.startswith(BUSY_MACHINE_REASONS) for reason in record["reasons"])
        assert record["status"] == "valid" or busy, record["reasons"]
    assert {one["config"]["fault"] for one in measured["records"]} == set(VICTIMS)
    # With schedule lag, nothing is counted.
    late = {one["config"]["fault"] for one in measured["records"] if str(one["reasons"]).startswith("['schedule-lag")}
    assert harvested and {one["config"]["fault"] for one in harvested} | late == set(VICTIMS)
    for record in harvested:
        audit = record["metrics"]["audit"]
        assert audit["expected"] > 0
        assert (audit["lost"], audit["overcounted"], audit["unexpected"], audit["unknown"]) == (0, 0, 0, 0), audit


def test_killed_services_restarted(measured: dict[str, Any]) -> None:
    for record in counted(measured):
        (recovery,) = record["metrics"]["recoveries"]
        assert recovery["recovered"] or recovery["censored_at_s"] > 0, record["config"]["fault"]
        assert {"gate", "t0"} <= {event["name"] for event in record["timeline"]}


def test_measured_jvms_begin_from_an_archive_as_without_containers(measured: dict[str, Any]) -> None:
    for record in measured["records"]:
        for role in ("driver", "executors"):
            options = record["environment"]["jvm"][role]["options"]
            assert any("SharedArchiveFile" in one for one in options), options


def test_the_generator_has_its_place_before_others(measured: dict[str, Any]) -> None:
    assert measured["nice"] and min(measured["nice"]) == HIGH_PRIORITY_NICENESS


def test_private_files_are_unreadable_for_other_users(containers: Containers) -> None:
    listed = containers.podman("exec", containers.name("kafka"), "find", "/var/lib/faultline/state", "-perm", "/077",
                               "-not", "-type", "l")  # fmt: skip
    assert listed.strip() == ""


def test_only_prepare_gets_the_database_password(containers: Containers) -> None:
    env = dict(line.split("=", 1) for line in (containers.folder / "secrets" / "env").read_text().splitlines())
    for name in ("kafka", "spark-worker-1", "airflow-scheduler"):
        inspected = containers.podman("inspect", containers.name(name))
        assert env["FAULTLINE_ADMIN_PASSWORD"] not in inspected and env["FAULTLINE_POSTGRES_PASSWORD"] not in inspected


def test_the_containers_pass_the_target_checks(containers: Containers, measured: dict[str, Any]) -> None:
    added, checked, removed = containers.python(TARGET, timeout_s=600)
    assert added[0] == 0 and added[2].count(": created") == 3, added
    assert checked[0] == 0 and "FAILED:" not in checked[1], checked
    for look in (
        "kafka",
        "kafka login",
        "kafka rights",
        "storage",
        "spark",
        "spark version",
        "spark login and storage",
    ):
        assert f"\n{look}: " in f"\n{checked[1]}", checked
    assert removed[0] == 0 and removed[2].count(": removed") == 3, removed


@pytest.mark.last
def test_up_restores_the_services_after_a_kill_of_all(containers: Containers, measured: dict[str, Any]) -> None:
    """End the pid namespace with all its processes, as a reboot does."""
    containers.podman("kill", "--signal=KILL", containers.name("machine"))
    containers.up()
    again = containers.python(PROGRAM, MATRIX, SWEEP, "{}", timeout_s=300)
    assert [one["attempt"] for one in again["records"]] == [one["attempt"] for one in measured["records"]]
    assert USER in containers.podman("exec", containers.name("kafka"), "cat",
                                     "/var/lib/faultline/state/airflow/passwords.json")  # fmt: skip


@pytest.mark.last
def test_down_leaves_nothing(containers: Containers) -> None:
    containers.down()
    assert containers.leftovers() == []
