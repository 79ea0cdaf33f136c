"""One schedule sent by one process, by several of this machine, and by tasks of Spark executors: the same records."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from faultline.engines.runtime import Runtime
from faultline.engines.spark.submission import generator_job
from faultline.experiment.attempt import Attempt
from faultline.experiment.run import run_of
from faultline.installation.java import find_java
from faultline.installation.kafka import kafka_ready
from faultline.installation.spark import spark_submit
from faultline.installation.supervisord import Supervisor
from faultline.system.journal import read_journal
from faultline.system.process_ledger import processes_with_mark
from faultline.system.process_tags import RUN_MARK, load_token
from faultline.system.secrets import HARNESS, login_file
from faultline.system.settings import ROOT, Settings
from faultline.system.waiting import wait_until
from generators.kafka_credentials import CREDENTIALS_ENV
from generators.producer import QUEUE_RECORDS
from generators.spec import GeneratorSpec
from tests.support.attempts import prepared
from tests.support.installation import Installation
from tests.support.topics import client, read_topic

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(1800)]

PARTITIONS = 2
RATE, SECONDS = 600.0, 5.0
AHEAD_NS = 500_000_000


class GeneratorRun:
    """One generator run on topic `name`, with its files in `folder`."""

    def __init__(
        self, settings: Settings, folder: Path, processes: int, on_executors: bool, rate: float = RATE
    ) -> None:
        self.settings, self.attempt = settings, Attempt(folder)
        self.topic = folder.name
        self.spec = GeneratorSpec(
            bootstrap=settings.endpoints.kafka, topic=self.topic, partitions=PARTITIONS, rate=rate, seconds=SECONDS,
            source="zipf", state_mb=0.1, state_touch=0.2, primer_lines=10, processes=processes,
        )  # fmt: skip
        self.attempt.logs.mkdir(parents=True)
        config = folder / "generator_config.json"
        config.write_text(self.spec.model_dump_json())
        arguments = ["--config", str(config), "--gate", str(self.attempt.gate)]
        arguments += ["--histogram", str(folder / "lag.hlog")]
        self.command = [sys.executable, "-m", "generators", *arguments]
        self.environment = {"PYTHONPATH": str(ROOT), CREDENTIALS_ENV: str(login_file(settings.secrets, HARNESS))}
        if on_executors:
            prepared(folder, {"generator_processes": processes}, endpoints=settings.endpoints)
            runtime = Runtime(find_java(settings.home / "java.json").home)
            job = generator_job(run_of(self.attempt, settings), runtime, tuple(arguments))
            program, *rest = job.command
            self.command = spark_submit(
                settings, job.settings, Path(program), *rest, master=settings.endpoints.engine, name=job.name
            )
            self.environment = dict(job.environment)

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        """Run the generator, and stop it at the end."""
        with self.attempt.generator_journal.open("wb") as out, (self.attempt.folder / "err").open("wb") as err:
            process = subprocess.Popen(
                [*self.command, load_token(self.attempt.id)], env={**os.environ, **self.environment}, stdout=out,
                stderr=err,
            )  # fmt: skip
        try:
            yield process
        finally:
            process.kill()
            process.wait(120)

    def result(self, name: str) -> dict[str, Any] | None:
        found = [line for line in read_journal(self.attempt.generator_journal) if line.get("event") in (name, "failed")]
        assert not found or found[-1]["event"] == name, found[-1]
        return found[-1] if found else None

    def open_barrier(self) -> int:
        """Open the start barrier and return T0 on the wall clock."""
        wait_until(lambda: self.result("primed"), timeout_s=120, what=f"{self.topic}: its primer")
        t0 = {"t0_wall_ns": time.time_ns() + AHEAD_NS, "t0_mono_ns": time.monotonic_ns() + AHEAD_NS}
        ready = self.attempt.gate.with_suffix(".tmp")
        ready.write_text(json.dumps(t0))
        ready.rename(self.attempt.gate)
        return t0["t0_wall_ns"]

    def schedule(self, t0_wall_ns: int) -> list[tuple[int, str]]:
        """Return the records of the topic without preload, as sorted (ms after T0, line)."""
        found = [one for one in read_topic(self.settings, self.topic) if not one.primer]
        return sorted((one.timestamp_ms - t0_wall_ns // 1_000_000, one.value) for one in found)


@pytest.fixture(scope="module")
def settings(shared_installation: Installation) -> Settings:
    assert shared_installation.run("up").returncode == 0
    return shared_installation.settings


@contextmanager
def topics(settings: Settings, names: Sequence[str]) -> Iterator[None]:
    admin = AdminClient(client(settings))
    for future in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names]).values():
        future.result()
    try:
        yield
    finally:
        for future in admin.delete_topics(list(names)).values():
            future.result()


def test_all_generators_send_the_same_records(settings: Settings, tmp_path: Path) -> None:
    names = [f"{kind}-{time.time_ns()}" for kind in ("one", "several", "executors")]
    with topics(settings, names):
        found, primers = [], []
        for name, processes, on_executors in zip(names, (1, 3, 3), (False, False, True), strict=True):
            sent = GeneratorRun(settings, tmp_path / name, processes, on_executors)
            with sent.running() as process:
                t0 = sent.open_barrier()
                done = wait_until(lambda sent=sent: sent.result("done"), timeout_s=60, what=name)  # type: ignore[misc]
                assert process.wait(120) == 0
            assert (done["records"], done["acked"], done["unknown"]) == (RATE * SECONDS, RATE * SECONDS, 0)
            assert done["schedule_lag_ms"]["max"] > 0 and (sent.attempt.folder / "lag.hlog").exists()
            found.append(sent.schedule(t0))
            primers.append([one.value for one in read_topic(settings, name) if one.primer])
            wait_until(
                lambda sent=sent: not leftovers(sent), timeout_s=60, what=f"{name}: the end of all its processes"
            )  # type: ignore[misc]
        one, several, executors = found
        assert len(one) == RATE * SECONDS
        # T0 has another fraction of a millisecond in each run, so rounded times may differ by one.
        for other in (several, executors):
            assert sorted(line for _, line in other) == sorted(line for _, line in one)
            assert all(abs(mine - theirs) <= 1 for (mine, _), (theirs, _) in zip(one, other, strict=True))
        assert primers[0] == primers[1] == primers[2] and len(primers[0]) > 10


def test_no_executor_sends_after_a_kill_of_the_lead_process(settings: Settings, tmp_path: Path) -> None:
    name = f"killed-{time.time_ns()}"
    with topics(settings, [name]):
        sent = GeneratorRun(settings, tmp_path / name, 2, on_executors=True)
        with sent.running() as process:
            sent.open_barrier()
            wait_until(lambda: sent.result("progress"), timeout_s=60, what="its first second")
            process.send_signal(signal.SIGKILL)
            wait_until(lambda: not leftovers(sent), timeout_s=60, what="the end of all its processes")
        assert sent.result("done") is None


# A shorter delivery timeout: records without an acknowledgement after it are unknown.
IMPATIENT = """
import sys
from generators import producer
producer.DELIVERY_TIMEOUT_MS, producer.RecordSender.flush.__defaults__ = 4_000, (4.0,)
from generators.__main__ import main
sys.exit(main())
"""
FLOOD = 50_000.0


def test_records_without_an_answer_of_the_broker_are_counted(settings: Settings, tmp_path: Path) -> None:
    name = f"gone-{time.time_ns()}"
    broker = psutil.Process(Supervisor(settings).pids()["kafka"])
    with topics(settings, [name]):
        sent = GeneratorRun(settings, tmp_path / name, 1, on_executors=False, rate=FLOOD)
        sent.command[1:3] = ["-c", IMPATIENT]
        with sent.running() as process:
            sent.open_barrier()
            before = wait_until(lambda: sent.result("progress"), timeout_s=60, what="its first second")
            resident = psutil.Process(process.pid)
            broker.suspend()
            try:
                peak = 0

                def over() -> bool:
                    nonlocal peak
                    with contextlib.suppress(psutil.Error):
                        peak = max(peak, resident.memory_info().rss)
                    return process.poll() is not None

                wait_until(over, timeout_s=120, what="the end of the generator")
            finally:
                broker.resume()
        done = sent.result("done")
        assert process.returncode == 0 and done is not None
        assert done["records"] == FLOOD * SECONDS and done["acked"] + done["unknown"] == done["records"]
        assert 0 < before["sent"] <= done["acked"] + QUEUE_RECORDS and done["unknown"] > FLOOD
        assert peak < 300e6, "100,000 records of 100 bytes on their way, and no others"
        wait_until(
            lambda: kafka_ready(settings.endpoints.kafka, settings.secrets), timeout_s=60, what="the broker's answer"
        )


def leftovers(sent: GeneratorRun) -> list[int]:
    return [process.pid for process in processes_with_mark(RUN_MARK, sent.attempt.id)]
