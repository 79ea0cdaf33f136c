"""Word count and SQL files on Flink: exact counts and a complete timeline under kills, and nothing left running."""

from __future__ import annotations

import json
import signal
import socket
import ssl
import subprocess
from pathlib import Path

import pytest

from faultline.cli.build_command import add_engine
from faultline.engines.flink.tls import INTERNAL, REST
from faultline.records.record import Record
from faultline.system.endpoints import HOST
from faultline.system.errors import FaultlineError
from faultline.system.journal import find_last, read_journal
from faultline.system.process_ledger import process_of, read_ledger
from faultline.system.process_tags import run_option
from faultline.system.settings import ROOT, load_settings
from faultline.system.waiting import wait_until
from tests.support.installation import Installation

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(2400)]

HEARTBEATS = ("flink_conf.heartbeat.interval=500ms", "flink_conf.heartbeat.timeout=5s")
PARAMETERS = ("rate=200", *HEARTBEATS)
EXAMPLES = ROOT / "examples"
ORDERS = (f"job={EXAMPLES / 'orders.sql'}", f"data={EXAMPLES / 'orders.csv'}", "data_key=customer", "rate=200")


@pytest.fixture(scope="module")
def running(shared_installation: Installation) -> Installation:
    """Running Kafka, with Flink installed."""
    try:
        add_engine("flink")
    except FaultlineError as error:
        pytest.skip(f"Flink cannot be installed here: {error}")
    (shared_installation.home / "flink").symlink_to(load_settings().home / "flink", target_is_directory=True)
    assert shared_installation.run("up", "--no-airflow").returncode == 0
    return shared_installation


@pytest.mark.parametrize(
    ("fault", "action"),
    [("executor", "kill"), ("driver", "kill"), ("kafka", "kill"), ("executor", "pause"), ("kafka", "cut")],
)
def test_counts_are_exact_and_the_timeline_is_complete(running: Installation, fault: str, action: str) -> None:
    """A pause of 10 s is longer than the heartbeat timeout."""
    done = running.run("run", "word_count", "engine=flink", f"fault={fault}", f"fault_action={action}", *PARAMETERS)
    record = Record.model_validate_json(done.stdout)
    audit, events = record.metrics.audit, {event.name for event in record.timeline}
    assert audit.expected and record.metrics.recovery.recovered is not None, (record.reasons, done.stderr[-2000:])
    assert (audit.lost, audit.overcounted, audit.unexpected, audit.unknown, audit.checksum_mismatches) == (0,) * 5
    assert {"t0", "t2", "t3", "t4", "t5", "t6", "t7"} <= events
    metrics, jvms = record.metrics, record.environment.jvm
    assert metrics.effective_interval_s == pytest.approx(2, rel=0.2)
    assert metrics.checkpoints and metrics.checkpoints.count >= 8 and metrics.checkpoints.alignment_ms
    assert metrics.unplanned_exits == 0 and (metrics.recovery.restarts or 0) >= (fault == "executor")
    assert jvms and jvms["driver"].collector == jvms["executors"].collector == "Serial"
    assert metrics.background_cpu and (metrics.background_cpu.recorder or 0) <= 0.02
    folder = running.results / "attempts" / record.attempt
    assert not [entry for entry in read_ledger(folder / "ledger.jsonl") if process_of(entry)]
    assert not _processes_of(record.attempt)
    assert not (folder / "flink").exists(), "certificates and passwords are removed"


@pytest.mark.parametrize(
    ("values", "is_exact"),
    [
        (("commit_mode=none", "fault=none"), True),
        (("commit_mode=at-least-once", "fault=executor"), False),
        (("commit_mode=unaligned-barriers", "fault=executor"), True),
        (("delivery_guarantee=exactly-once", "fault=executor"), True),
    ],
)
def test_each_commit_mode_and_delivery_guarantee_holds(
    running: Installation, values: tuple[str, ...], is_exact: bool
) -> None:
    """Without alignment, records can be counted twice; a transactional sink emits nothing again."""
    done = running.run("run", "word_count", "engine=flink", *PARAMETERS, *values)
    record = Record.model_validate_json(done.stdout)
    metrics, audit = record.metrics, record.metrics.audit
    assert audit.expected and metrics.recovery.recovered is not False, (record.reasons, done.stderr[-2000:])
    assert (audit.lost, audit.unexpected, audit.undrained) == (0, 0, 0)
    assert (audit.overcounted, audit.checksum_mismatches) == (0, 0) or not is_exact
    assert metrics.effective_interval_s == pytest.approx(2, rel=0.2)
    is_transactional = values[0].startswith("delivery")
    assert (metrics.visible_delay_ms is not None) == is_transactional
    assert not (is_transactional and audit.reemitted)


def test_the_same_sql_file_is_exact_on_both_engines(running: Installation) -> None:
    expected, fixed = set(), "warmup_max_s=0"  # the same number of records
    for words in (("engine=flink", *HEARTBEATS), ("engine=spark",)):
        done = running.run("run", "query", *ORDERS, "fault=executor", fixed, *words)
        record = Record.model_validate_json(done.stdout)
        audit, latency = record.metrics.audit, record.metrics.latency_ms
        assert record.metrics.recovery.recovered is not None, (record.reasons, done.stderr[-2000:])
        assert (audit.lost, audit.overcounted, audit.unexpected, audit.unknown, audit.undrained) == (0,) * 5
        assert latency.count and not latency.unreflected
        expected.add(audit.expected)
    assert len(expected) == 1 and None not in expected, "both read the same input"


def test_sql_that_does_not_parse_is_reported_at_its_place(running: Installation, tmp_path: Path) -> None:
    job = tmp_path / "job.sql"
    job.write_text("-- a query\nSELECT `key`, `value`\nFORM records\n")
    done = running.run("run", "query", f"job={job}", "engine=flink", "fault=none")
    record = Record.model_validate_json(done.stdout)
    assert record.status == "failed"
    assert "driver-0.log: Caused by: org.apache.flink.table.api.SqlParserException: " in record.reasons[0]
    assert 'Encountered "records" at line 3, column 6.' in record.reasons[0]


def test_a_job_that_always_fails_ends_with_its_reason(running: Installation, tmp_path: Path) -> None:
    job = tmp_path / "job.sql"
    job.write_text(
        "SELECT `key`, CAST(1 / (CHAR_LENGTH(`value`) - CHAR_LENGTH(`value`)) AS STRING) AS `value` FROM records\n"
    )
    attempts = "flink_conf.restart-strategy.fixed-delay.attempts=3"
    done = running.run("run", "query", f"job={job}", "engine=flink", "fault=none", attempts)
    record = Record.model_validate_json(done.stdout)
    reason = "Flink's job failed and its restart attempts are used up; driver-0.log: Caused by: "
    assert record.status == "failed" and record.reasons[0].endswith(f"{reason}java.lang.ArithmeticException: / by zero")
    assert not _processes_of(record.attempt)


def test_a_checkpoint_that_cannot_be_restored_ends_the_run_with_its_reason(running: Installation) -> None:
    """The files of the state are deleted between the kill of the JobManager and its restart."""
    before = set(running.results.glob("attempts/*"))
    attempts = "flink_conf.restart-strategy.fixed-delay.attempts=3"
    command = [*running.command("run"), "word_count", "engine=flink", "fault=driver", *PARAMETERS, attempts]
    environment = {"env": running.environment, "cwd": running.home}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **environment) as process:
        plan = wait_until(lambda: _new_plan(running, before), timeout_s=300, every_s=0.5, what="plan.json")
        journal = plan.with_name("supervisor.jsonl")
        wait_until(
            lambda: find_last(read_journal(journal), event="exit"),
            timeout_s=600,
            every_s=0.02,
            what="exit of the JobManager",
        )
        launch = json.loads((plan.parent / "flink" / "driver.json").read_text())
        for file in Path(launch["checkpoints"]).glob("shared/*"):
            file.unlink()
        record = Record.model_validate_json(process.communicate(timeout=900)[0])
    assert record.status == "failed"
    assert "workload: Flink's job failed" in record.reasons[0] and "FileNotFoundException" in record.reasons[0]
    assert not _processes_of(record.attempt)


def test_a_workload_without_sql_is_refused(running: Installation) -> None:
    done = running.run("run", "pi", "engine=flink", "--dry-run")
    assert done.returncode == 2 and "workload: " in done.stderr


def test_ports_refuse_clients_without_the_certificate(running: Installation) -> None:
    command = [*running.command("run"), "word_count", "engine=flink", "fault=none", *PARAMETERS]
    before = set(running.results.glob("attempts/*"))
    with subprocess.Popen(command, env=running.environment, cwd=running.home, stderr=subprocess.PIPE) as process:
        try:
            plan = wait_until(lambda: _new_plan(running, before), timeout_s=300, every_s=0.5, what="plan.json")
            folder = plan.parent / "flink"
            ports = json.loads(plan.read_text())["engine"]["addresses"]
            wait_until(lambda: _is_open(ports["rest"]), timeout_s=300, every_s=0.5, what="port of REST")
            for name, certificate in (("rpc", INTERNAL), ("blob", INTERNAL), ("rest", REST)):
                other = {INTERNAL: REST, REST: INTERNAL}[certificate]
                assert _accepts(ports[name], folder / f"{certificate}.pem"), name
                assert not _accepts(ports[name], None), name
                assert not _accepts(ports[name], folder / f"{other}.pem"), name
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=300)
    assert not _processes_of(plan.parent.name) and not folder.exists()


def _new_plan(running: Installation, before: set[Path]) -> Path | None:
    new = set(running.results.glob("attempts/*")) - before
    return next((one / "plan.json" for one in new if (one / "plan.json").exists()), None)


def _is_open(port: int) -> bool:
    with socket.socket() as made:
        return made.connect_ex((HOST, port)) == 0


def _accepts(port: int, certificate: Path | None) -> bool:
    """Return whether the server keeps a TLS connection with this client certificate open; it waits for a request."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if certificate is not None:
        context.load_cert_chain(certificate)
    try:
        with (
            socket.create_connection((HOST, port), timeout=5) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as made,
        ):
            made.recv(1)
    except TimeoutError:
        return True
    except OSError:  # includes SSLError
        return False
    return False


def _processes_of(attempt: str) -> list[Path]:
    mark = run_option(attempt).encode()
    return [path for path in Path("/proc").glob("[0-9]*/cmdline") if mark in _content(path)]


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
