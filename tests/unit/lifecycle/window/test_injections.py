"""The conductor with several injections, on real processes and a checkpoint that a thread writes like an engine."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fault.identity import EXECUTOR
from fault.injector import Injector
from fault.plan import Fault, FaultPlan
from faultline.engines.spark.progress import CheckpointProgress
from faultline.experiment.config import parse_configuration
from faultline.experiment.injections import repeated
from faultline.experiment.plan import Aim
from faultline.lifecycle.assignment import Assignment
from faultline.lifecycle.conductor import Conductor
from faultline.lifecycle.window.measured_window import JUDGE_MARGIN_S
from faultline.records.judge.recovery import limits
from faultline.system.journal import Journal, last, read_journal

INTERVAL_S, RATE = 0.1, 1000.0
ATTEMPT = f"20261121T061500Z-{uuid.uuid4().hex[:6]}"


class Broker:
    """The end offsets of an input that is sent at the rate."""

    def __init__(self, folder: Path) -> None:
        self._journal = folder / "conductor.jsonl"

    def read(self, timeout_s: float) -> dict[str, int]:
        return {"0": due(self._journal)}


def due(journal: Path) -> int:
    """Records due by now."""
    gate = last(read_journal(journal), event="gate") if journal.exists() else None
    return 0 if gate is None else max(0, int((time.monotonic_ns() - gate["t0_mono_ns"]) * RATE / 1e9))


class Engine(threading.Thread):
    """Commits what is due every INTERVAL_S; a kill costs it `outage_s`. `dies`: it never comes back from the first."""

    def __init__(self, folder: Path, *, outage_s: float = 0.5, dies: bool = False) -> None:
        super().__init__(daemon=True)
        self._folder, self._outage_s, self._dies = folder, outage_s, dies
        self.stopped = threading.Event()
        for name in ("commits", "offsets"):
            (folder / "checkpoint" / name).mkdir(parents=True)

    def run(self) -> None:
        number, kills, journal = 0, 0, self._folder / "conductor.jsonl"
        while not self.stopped.wait(INTERVAL_S):
            lines = read_journal(journal) if journal.exists() else []
            killed = sum(line["event"] == "delivered" for line in lines)
            if killed > kills:
                kills = killed
                if self._dies or self.stopped.wait(self._outage_s):
                    return
            offsets = "v1\n{}\n" + json.dumps({"input": {"0": due(journal)}})
            (self._folder / "checkpoint" / "offsets" / str(number)).write_text(offsets)
            (self._folder / "checkpoint" / "commits" / str(number)).write_text("v1\n{}")
            number += 1


@pytest.fixture
def executors() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Three sleepers that look like executors of the attempt."""
    program = "import time; print('up', flush=True); time.sleep(300)"
    started = []
    for number in range(3):
        marks = [f"-Dfaultline.run={ATTEMPT}", EXECUTOR.main, "--executor-id", str(number)]
        process = subprocess.Popen([sys.executable, "-c", program, *marks], stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
    yield started
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def conducted(folder: Path, engine: Engine, **given: Any) -> list[dict[str, Any]]:
    """The conductor's journal of a run with two injections."""
    (folder / "generator.jsonl").write_text('{"event": "primed", "end_offsets": {"0": 0}}\n')
    config = parse_configuration({"injections": 2})
    planned = FaultPlan((Fault("executor", "kill", at_s=1.0),), seed=1).resolve(
        rate=RATE, checkpoint_interval_s=INTERVAL_S, snapshot_interval_s=1
    )
    usual: dict[str, Any] = {
        "duration_s": 200.0,
        "checkpoint_interval_s": INTERVAL_S,
        "warmup_s": 0.5,
        "warmup_max_s": 60.0,
        "max_wait_s": 90.0,
        "aim": Aim(0.5, 10, 60.0, (0.25,)),
        "generator": {
            "bootstrap": "127.0.0.1:1",
            "topic": "in",
            "partitions": 1,
            "rate": RATE,
            "seconds": 260.0,
        },
    }
    assignment = Assignment(
        ATTEMPT, repeated(planned, config), bootstrap="127.0.0.1:1", input_topic="in", **{**usual, **given}
    )
    progress = CheckpointProgress(folder / "checkpoint", folder / "listener.jsonl")
    conductor = Conductor(assignment, folder, injector=Injector(), offsets=Broker(folder), progress=progress)
    engine.start()
    with Journal(folder / "conductor.jsonl") as journal:
        assert conductor.run(journal) == 0
    engine.stopped.set()
    return read_journal(folder / "conductor.jsonl")


def test_each_injection_hits_another_executor_once_the_engine_is_back(
    tmp_path: Path, executors: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SHORTEST_HOLD_S", 1.0)
    lines = conducted(tmp_path, Engine(tmp_path))
    names = [line["event"] for line in lines]
    assert [name for name in names if name in ("gate", "measured_from", "settled", "injection", "measured_until")] == [
        "gate",
        "measured_from",
        "settled",
        "injection",
        "settled",
        "measured_until",
    ]
    assert [line["outcome"] for line in lines if line["event"] == "settled"] == ["effective", "effective"]
    assert len({line["victim"] for line in lines if line["event"] == "delivered"}) == 2
    assert sum(process.poll() is not None for process in executors) == 2
    injection = last(lines, event="injection")
    assert injection is not None
    assert injection["fault"] == 1
    # The outage, then what must hold, and what the next fault can make late.
    assert injection["normal_s"] >= 0.5
    assert injection["waited_s"] >= injection["normal_s"] + 1.0 + INTERVAL_S + JUDGE_MARGIN_S
    assert json.loads((tmp_path / "load_end.json").read_text())["end_mono_ns"] > lines[-1]["mono_ns"] - 30e9


def test_an_engine_that_never_comes_back_ends_the_run_with_what_it_has(
    tmp_path: Path, executors: list[subprocess.Popen[bytes]]
) -> None:
    lines = conducted(tmp_path, Engine(tmp_path, dies=True), max_wait_s=1.0)
    assert [line["event"] for line in lines].count("settled") == 1
    trouble = last(lines, event="not_normal")
    assert trouble is not None
    assert (trouble["fault"], trouble["signal"]) == (1, "commits")
    assert lines[-1]["event"] == "done"
    assert sum(process.poll() is not None for process in executors) == 1
