"""Specification, buffer, accounting, and the run with a fake clock and a fake producer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hdrh.log import HistogramLogReader
from hypothesis import given
from hypothesis import strategies as st

from generators.data_files import Data
from generators.generator_process import run_schedule, send_closing, send_preload
from generators.pacing import MIN_SLEEP_NS, Shard
from generators.producer import FEW_IN_FLIGHT, MAX_WAITING, PHASE, PRIMER_KEY, RecordSender, make_producer
from generators.schedule_lag import ScheduleLag, new_histogram, percentiles_ms, write_log
from generators.send_progress import GeneratorError, SendProgress
from generators.spec import GeneratorSpec
from generators.start_barrier import StartInstant, Stopped, StopRequest, await_barrier
from generators.stream import CHUNKS_AHEAD, Replay, Stream, make_source, make_state_keys
from tests.unit.generators.conftest import spec_of as spec
from tests.unit.generators.test_pacing import FakeClock

ROOT = Path(__file__).parents[3]
T0 = StartInstant(wall_ns=1_800_000_000_123_456_789, mono_ns=5_000_000_000)


class FakeProducer:
    """Producer that acknowledges at poll, fails records in `failing`, and is full every `full_every` records."""

    def __init__(self, failing: tuple[int, ...] = (), full_every: int = 0, stuck: int = 0) -> None:
        self.messages: list[dict[str, Any]] = []
        self.queued: list[tuple[int, Callable[..., None]]] = []
        self.failing, self.full_every, self.stuck, self.refused = failing, full_every, stuck, 0

    def __len__(self) -> int:
        return len(self.queued)

    def produce(
        self, topic: str, value: bytes, key: Any = None, partition: int = -1, callback: Any = None,
        on_delivery: Any = None, timestamp: int = 0, headers: Any = None,
    ) -> None:  # fmt: skip
        if self.full_every and len(self.messages) % self.full_every == 0 and self.refused != len(self.messages):
            self.refused = len(self.messages)
            raise BufferError
        self.queued.append((len(self.messages), callback or on_delivery))
        self.messages.append({"value": value, "key": key, "p": partition, "ts": timestamp, "headers": headers})

    def poll(self, _timeout: float) -> int:
        while len(self.queued) > self.stuck:
            number, callback = self.queued.pop(0)
            if number in self.failing:
                callback("timed out", None)
        return 0

    flush = poll


def run(given_spec: GeneratorSpec, producer: FakeProducer, shard: Shard = Shard()) -> Any:  # noqa: B008
    sender = RecordSender(producer, "t")
    stream = Stream(make_source(given_spec), make_state_keys(given_spec), given_spec, shard)
    clock = FakeClock(T0.mono_ns - 300_000_000)
    return run_schedule(given_spec, shard, stream, sender, T0, StopRequest(), lambda standing: None, clock)


def test_every_record_has_its_intended_time_and_partition() -> None:
    producer = FakeProducer()
    outcome = run(spec(rate=333.0, seconds=3), producer)
    assert outcome.records == outcome.acked == 999 and outcome.unknown == 0
    assert [m["ts"] for m in producer.messages] == [(T0.wall_ns + k * 10**9 // 333) // 10**6 for k in range(999)]
    assert [m["p"] for m in producer.messages] == [k % 2 for k in range(999)]
    assert all(m["key"] is None and m["headers"] is None for m in producer.messages)
    assert outcome.schedule_lag.get_total_count() == 999
    assert percentiles_ms(outcome.schedule_lag)["max"] <= MIN_SLEEP_NS / 1e6


def test_failed_and_undelivered_records_are_unknown() -> None:
    assert run(spec(), FakeProducer(failing=(3, 10, 999))).unknown == 3
    sender = RecordSender(FakeProducer(stuck=5), "t")
    sender.send([b"x"] * 20, [0] * 20, [1] * 20)
    assert sender.flush(timeout_s=0.01) == 5


def test_a_queue_full_by_size_loses_and_repeats_nothing() -> None:
    plain, full = FakeProducer(), FakeProducer(full_every=7)
    assert run(spec(), full).records == 1000
    run(spec(), plain)
    assert full.messages == plain.messages


@given(st.lists(st.tuples(st.integers(1, 300), st.integers(0, 400)), max_size=60))
def test_records_wait_while_others_are_in_flight(steps: list[tuple[int, int]]) -> None:
    """Each step sends records, then acknowledges up to a number of them."""
    producer = FakeProducer(stuck=10**9)
    sender, number = RecordSender(producer, "t"), 0
    for records, acknowledged in steps:
        before, on_their_way = len(producer.messages), len(producer)
        sender.send([b"%d" % (number + n) for n in range(records)], [0] * records, [0] * records)
        number += records
        assert sender.sent == number
        waiting = number - before
        held = on_their_way >= FEW_IN_FLIGHT and waiting <= MAX_WAITING
        assert len(producer.messages) == (before if held else number)
        del producer.queued[:acknowledged]
        if len(producer) == 0:
            sender.send_waiting()
            assert len(producer.messages) == number, "what waits leaves without further records"
    producer.stuck = 0
    assert sender.flush() == 0
    assert [m["value"] for m in producer.messages] == [b"%d" % n for n in range(number)]


def test_unpaced_run_sends_the_requested_number() -> None:
    producer = FakeProducer()
    assert run(spec(rate=None, seconds=None, records=10_001), producer).acked == 10_001
    assert {m["ts"] for m in producer.messages} == {T0.wall_ns // 10**6}


def test_primer_reaches_every_partition_and_carries_all_keys() -> None:
    producer = FakeProducer()
    wanted = spec(partitions=3, state_mb=0.5)
    keys = make_state_keys(wanted)
    sent = send_preload(wanted, make_source(wanted), keys, RecordSender(producer, "t"))
    assert sent == 3 + 489 == len(producer.messages)
    assert {m["p"] for m in producer.messages[:3]} == {0, 1, 2}
    assert all(m["key"].startswith(PRIMER_KEY) and m["headers"] == [(PHASE, b"primer")] for m in producer.messages)
    assert [m["value"] for m in producer.messages[3:]] == keys.words(np.arange(489, dtype=np.uint64))
    with pytest.raises(GeneratorError, match="1 primer records unacknowledged timed out"):
        send_preload(wanted, make_source(wanted), keys, RecordSender(FakeProducer(failing=(4,)), "t"))


def test_closing_records_use_the_keys_of_user_data() -> None:
    """A job that reads keys must not find reserved keys among them; text has reserved keys."""
    wanted, own = spec(partitions=2), Replay(Data([b"a", b"b"], [b"k1", b"k2"]), 1, 0)
    producer = FakeProducer()
    send_closing(wanted, own.preload(2), RecordSender(producer, "t"), ahead_s=3300.0, replay=own)
    send_closing(wanted, [b"x"], RecordSender(producer, "t"), ahead_s=3300.0)
    assert [m["key"] for m in producer.messages] == [b"k1", b"k2", f"{PRIMER_KEY}0"]
    assert all(m["headers"] == [(PHASE, b"closing")] for m in producer.messages)
    assert all(m["ts"] > (time.time() + 3200) * 1000 for m in producer.messages)


def test_the_real_producer_reports_failures_to_the_error_callback() -> None:
    producer = make_producer("127.0.0.1:1")
    sender = RecordSender(producer, "t")
    sender.send([b"x"] * 5, [0] * 5, [1] * 5)
    # The client also counts pending events, such as an unreachable broker.
    assert len(producer) >= 5 == sender.sent and sender.failed == 0
    producer.purge()
    assert sender.flush(5) == 5 == sender.failed


def test_buffer_is_bounded() -> None:
    wanted = spec(rate=100_000, seconds=1_000_000)
    stream = Stream(make_source(wanted), make_state_keys(wanted), wanted, Shard())
    assert stream.total == 10**11
    assert sum(1 for _ in iter(stream.prepare, False)) == CHUNKS_AHEAD


@given(st.lists(st.integers(-10, 4_000_000_000_000), min_size=1, max_size=300))
def test_schedule_lag_equals_a_plain_histogram(late_ns: list[int]) -> None:
    lateness, plain = ScheduleLag(), new_histogram()
    for value in late_ns:
        lateness.record(value, np.zeros(1, dtype=np.int64))
        plain.record_value(min(max(value // 1000, 0), 3_600_000_000))
    histogram = lateness.histogram()
    for percentile in (0, 10, 50, 90, 99, 100):
        assert histogram.get_value_at_percentile(percentile) == plain.get_value_at_percentile(percentile)
    assert histogram.get_total_count() == len(late_ns)


def test_histogram_log_round_trip(tmp_path: Path) -> None:
    lateness = ScheduleLag()
    lateness.record(5_000_000, np.arange(0, 5_000_000, 1000, dtype=np.int64))
    histogram = lateness.histogram()
    write_log(tmp_path / "lag.hlog", histogram, 1_800_000_000_000, 1_800_000_010_000)
    back = new_histogram()
    with closing(HistogramLogReader(str(tmp_path / "lag.hlog"), back)) as reader:
        assert reader.add_next_interval_histogram()
    assert back.get_total_count() == 5000
    assert percentiles_ms(back) == percentiles_ms(histogram)
    assert percentiles_ms(new_histogram()) == {"p50": 0.0, "p99": 0.0, "max": 0.0}


def test_gate(tmp_path: Path) -> None:
    gate, stop = tmp_path / "gate.json", StopRequest()
    gate.write_text('{"t0_wall_ns": 5, "t0_mono_ns": 7}')
    assert await_barrier(gate, stop) == StartInstant(5, 7)
    gate.write_text("{}")
    with pytest.raises(GeneratorError, match="t0_wall_ns"):
        await_barrier(gate, stop)
    stop.watch_parent(os.getppid() + 1)
    with pytest.raises(Stopped, match="parent process"):
        await_barrier(tmp_path / "none", stop)


def test_the_program_refuses_a_bad_specification_with_exit_code_2(tmp_path: Path) -> None:
    config = tmp_path / "spec.json"
    config.write_text(json.dumps({**spec().model_dump(), "source": "text", "corpus": str(tmp_path / "none")}))
    done = subprocess.run(
        [sys.executable, "-m", "generators", "--config", config, "--gate", "g", "--histogram", "h", "faultline-run=x"],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2
    assert json.loads(done.stdout)["event"] == "failed"
    assert "generator: corpus: " in done.stderr


def test_largest_lag_resets_and_progress_combines() -> None:
    both = SendProgress.combine([SendProgress(10, 12, 1, 3.0), SendProgress(20, 20, 0, 7.5)])
    assert both == SendProgress(30, 32, 1, 7.5)
    lateness = ScheduleLag()
    assert lateness.take_largest_ms() == 0.0
    lateness.record(20_000_000, np.array([15_000_000, 19_000_000]))
    lateness.record(30_000_000, np.array([29_000_000]))
    assert lateness.take_largest_ms() == 5.0
    assert lateness.take_largest_ms() == 0.0
    lateness.record(40_000_000, np.array([41_000_000]))
    assert lateness.take_largest_ms() == 0.0, "earlier than due is not late"
