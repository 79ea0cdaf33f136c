"""`job check`, and the records that `export-topic` copies."""

from __future__ import annotations

from pathlib import Path

import pytest

from faultline.cli.job_check import describe_job, describe_result, short_run
from faultline.cli.run_command import parse_order
from faultline.cli.topic_export import _row
from faultline.records.record import AuditPart, LatencyMs, Record
from faultline.system.errors import ConfigError
from faultline.system.settings import ROOT
from generators.producer import NUMBER, PHASE, PRIMER_KEY
from tests.unit.sample_records import sample

EXAMPLES = ROOT / "examples"
LATENCY = LatencyMs(
    mean=1.0, p50=900.0, p90=1.0, p99=1800.0, p999=1.0, max=1.0, count=5000, negative=0, unreflected=0, method="batch"
)
AUDIT = AuditPart(expected=1000, lost=0, overcounted=0, unexpected=0, reemitted=0, unknown=0)


def record(**metrics: object) -> Record:
    made = sample()
    return made.model_copy(update={"metrics": made.metrics.model_copy(update=metrics)})


def test_a_query_is_distinguished_from_a_program() -> None:
    workload, words = short_run(str(EXAMPLES / "word_count.py"), ["rate=100"])
    assert workload == "query" and words[:2] == [f"job={EXAMPLES / 'word_count.py'}", "rate=100"]
    assert "fault=none" in words and "duration_s=20" in words
    assert parse_order(workload, words).series == "job-check"
    workload, words = short_run(str(EXAMPLES / "kafka_word_count.py"), ["duration_s=30"])
    assert workload == "program" and words[0].startswith("application=") and "duration_s=20" not in words
    given = ["application_arguments={input} {output}"]
    assert short_run(str(EXAMPLES / "word_count.py"), given)[0] == "program", "no job has arguments such as these"


def test_a_sql_file_is_a_query() -> None:
    workload, words = short_run(str(EXAMPLES / "orders.sql"), ["engine=flink"])
    assert workload == "query" and words[:2] == [f"job={EXAMPLES / 'orders.sql'}", "engine=flink"]
    assert describe_job(str(EXAMPLES / "orders.sql")) == [
        "orders.sql: writes in update mode, latency of each input at the first output of its key that counts it"
    ]


def test_an_invalid_job_is_refused_before_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a file"):
        short_run(str(tmp_path / "no.py"), [])
    (tmp_path / "a.py").write_text("def query(:")
    with pytest.raises(ConfigError, match="a.py, line 1: "):
        short_run(str(tmp_path / "a.py"), [])


def test_the_declarations_of_a_job_are_described(tmp_path: Path) -> None:
    (tmp_path / "helper.py").touch()
    job = tmp_path / "job.py"
    job.write_text(
        "import helper\nJOB = {'output_mode': 'append', 'reflects': 'id', 'event_time': 'value', "
        "'arguments': {'n': 3}}\ndef query(records, config):\n    return records\n"
    )
    assert describe_job(str(job)) == [
        "job.py: writes in append mode, latency of each input at the first output with its id",
        "event time: value",
        "arguments: n=3",
        "further files: helper.py",
    ]
    job.write_text("def query(records, config):\n    return records\ndef sink(results, config):\n    return results\n")
    assert describe_job(str(job)) == ["job.py: writes in update mode, to its own sink"]


OFF = AUDIT.model_copy(update={"lost": 3, "unexpected": 1})
WHY = {"latency_ms": "outputs have no key", "audit": "it is not deterministic"}


@pytest.mark.parametrize(
    ("metrics", "shown", "hidden"),
    [
        (
            {"latency_ms": LATENCY, "audit": AUDIT},
            ["p50 900 ms, p99 1,800 ms of 5,000 tuples", "1,000 expected, none lost, overcounted or unexpected"],
            "Not measured",
        ),
        (
            {"not_measured": WHY, "audit": AuditPart.empty()},
            ["Not measured: latency: outputs have no key.", "Not measured: audit: it is not deterministic.",
             "ends when lag is back"],
            "p50",
        ),
        (
            {"latency_ms": LATENCY, "audit": OFF},
            ["without a fault 3 lost, 1 unexpected; see ./faultline explain"],
            "Not measured",
        ),
    ],
    ids=["all", "with its reason", "wrong without any fault"],
)  # fmt: skip
def test_measured_and_missing_figures_are_described(metrics: dict[str, object], shown: list[str], hidden: str) -> None:
    text = "\n".join(describe_result(record(**metrics)))
    assert all(one in text for one in shown) and hidden not in text


def test_a_failed_run_shows_its_reason() -> None:
    failed = sample().model_copy(update={"status": "failed", "reasons": ["workload: ended: ValueError: no"]})
    assert describe_result(failed) == ["failed: workload: ended: ValueError: no"]


class Message:
    """Record as returned by the consumer."""

    def __init__(self, key: bytes | None, *headers: tuple[str, bytes]) -> None:
        self.partition, self.offset = lambda: 0, lambda: 7
        self.timestamp = lambda: (1, 1_795_608_000_000)
        self.key, self.value, self.headers = lambda: key, lambda: b"v", lambda: list(headers)


@pytest.mark.parametrize(
    ("message", "kept"),
    [
        (Message(f"{PRIMER_KEY}0".encode(), (PHASE, b"primer")), None),
        (Message(b"user", (PHASE, b"closing")), None),  # of data that is replayed it has the data's key
        (Message(b"user", ("phase", b"closing"), ("h", b"1")), ["phase", "h"]),
        (Message(f"{PRIMER_KEY}0".encode(), ("phase", b"primer")), ["phase"]),
        (Message(None, (NUMBER, b"3")), []),
    ],
)
def test_records_outside_the_schedule_are_left_out(message: Message, kept: list[str] | None) -> None:
    row = _row(message)
    assert (row and [one["name"] for one in row["headers"]]) == kept
