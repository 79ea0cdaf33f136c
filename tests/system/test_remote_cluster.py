"""The demo's matrix on a remote Kafka and Spark with TLS, passwords and a secret, on several hosts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from faultline.records.store import Store
from faultline.system.files import write_private
from faultline.system.ssh_hosts import ssh_hosts
from tests.support.external_cluster import (
    SECRET,
    ExternalKafka,
    ExternalSpark,
    Place,
    conf,
    external_kafka,
    external_spark,
)
from tests.support.installation import BUSY_MACHINE_REASONS, Installation, make_installation
from tests.support.machines import NEEDS_HOSTS, Machines, machines_at

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.timeout(3600),
    *NEEDS_HOSTS,
]

# By their names in the target.
WORKERS = {"worker-a": "worker-1", "worker-b": "worker-2"}
MATRIX = "state_size_x_checkpoint_interval"


@dataclass(frozen=True)
class Lab:
    machines: Machines
    kafka: ExternalKafka
    spark: ExternalSpark


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Cluster with a broker host and two worker hosts; the master runs on this machine."""
    folder = tmp_path_factory.mktemp("others")
    with machines_at(folder / "home") as machines:
        workers = [machines.place(name) for name in WORKERS.values()]
        here = Place(machines.settings.placement.conductor)
        with (
            external_kafka(folder / "kafka", place=machines.place("kafka")) as broker,
            external_spark(folder / "spark", workers=workers, master_at=here) as engine,
        ):
            yield Lab(machines, broker, engine)


@pytest.fixture(scope="module")
def site(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Installation with the lab as a target."""
    folder = tmp_path_factory.mktemp("site")
    made = make_installation(folder)
    (folder / "shared").mkdir()
    try:
        assert made.run("up").returncode == 0
        _register(made, lab, folder)
        yield made
    finally:
        assert made.run("down").returncode == 0


def _register(made: Installation, lab: Lab, folder: Path) -> None:
    keys = ("host", "user", "port", "key_file", "known_hosts", "python")
    reached = {name: ssh_hosts(lab.machines.settings)[there] for name, there in WORKERS.items()}
    login, more, hosts = folder / "kafka.json", folder / "spark.json", folder / "hosts.json"
    write_private(hosts, json.dumps({name: {key: one[key] for key in keys} for name, one in reached.items()}))
    write_private(login, json.dumps(lab.kafka.login()))
    write_private(more, json.dumps({"secret": SECRET, "ui": lab.spark.ui, "conf": conf()}))
    options = ("--kafka", str(login), "--spark", lab.spark.master, "--spark-file", str(more))
    added = made.run("target", "add", "lab", *options, "--storage", str(folder / "shared"), "--host-file", str(hosts))
    assert added.returncode == 0 and added.stderr.count(": created") == 5, added.stderr


def test_the_matrix_of_the_demo_runs_on_remote_hosts(lab: Lab, site: Installation) -> None:
    checked = site.run("target", "check", "lab")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    shorter = ("repetitions=1", "max_measurements=1")
    done = site.run("sweep", MATRIX, "preset=demo", "target=lab", *shorter, timeout_s=3000)
    sweep = re.search(r"/faultline/sweeps/(\S+)", done.stdout)
    assert sweep is not None, done.stdout + done.stderr
    records = Store(site.results).query(sweep=sweep[1])
    assert records
    for record in records:
        assert record.status in ("valid", "unmet", "invalid"), record.reasons
        assert all(reason.startswith(BUSY_MACHINE_REASONS) for reason in record.reasons), record.reasons
        audit = record.metrics.audit
        assert audit.expected and (audit.lost, audit.overcounted, audit.unexpected, audit.unknown) == (0, 0, 0, 0)
        hosts = record.environment.hosts
        assert hosts is not None and set(hosts) == set(WORKERS), hosts
        for host in hosts.values():
            assert host.clock_ahead_s is not None and abs(host.clock_ahead_s) < 0.001
        assert [event for event in record.timeline if event.name == "t0"], "each run has kills"
    assert SECRET not in "".join(path.read_text(errors="replace") for path in _texts(site.results))


def _texts(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix in (".json", ".jsonl", ".log", ".md", ".conf"):
            yield path
