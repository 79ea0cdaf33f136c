"""User jobs on real Kafka and Spark: examples, a program, a sink, a failing job, another Spark build."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from faultline.experiment.attempt import Attempt
from faultline.experiment.attempt_plan import read_plan
from faultline.installation.spark import spark_home
from faultline.system.settings import ROOT
from tests.support.installation import BUSY_MACHINE_REASONS, Installation
from tests.support.java import compile_for_spark, pack_jar
from tests.support.postgresql import Cluster, new_cluster
from tests.support.topics import client, read_topic

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(1800)]

EXAMPLES = ROOT / "examples"
CLICKS = (f"data={EXAMPLES / 'clicks.jsonl'}", "data_key=user", "data_time=at", "rate=100")
SHORT = ("warmup_s=5", "duration_s=20", "fault=none")
KILL = ("warmup_s=8", "duration_s=55", "checkpoint_interval_s=1", "fault=executor")


@pytest.fixture(scope="module")
def installation(shared_installation: Installation) -> Installation:
    done = shared_installation.run("up", "--no-airflow")
    assert done.returncode == 0, done.stderr
    return shared_installation


def measured(installation: Installation, workload: str, *words: str) -> dict[str, Any]:
    """Run an experiment and return its record; only background load may make it invalid."""
    done = installation.run("run", workload, *words)
    assert done.returncode in (0, 1) and done.stdout, done.stderr
    record: dict[str, Any] = json.loads(done.stdout)
    assert all(reason.startswith(BUSY_MACHINE_REASONS) for reason in record["reasons"]), record["reasons"]
    return record


def exact(record: dict[str, Any]) -> None:
    audit = record["metrics"]["audit"]
    assert audit["expected"] and [audit[name] for name in ("lost", "overcounted", "unexpected", "unknown")] == [0] * 4


def test_a_query_is_measured_as_a_built_in_workload(installation: Installation) -> None:
    done = installation.run("job", "check", str(EXAMPLES / "word_count.py"))
    assert done.returncode in (0, 1), done.stderr
    assert "latency of each input at the first output of its key that counts it" in done.stderr
    if done.returncode == 0:
        assert "Latency: p50" in done.stdout and "none lost, overcounted or unexpected" in done.stdout
        assert "Not measured" not in done.stdout


def test_a_failed_job_shows_its_own_error(installation: Installation, tmp_path: Path) -> None:
    job = tmp_path / "broken.py"
    job.write_text("def query(records, config):\n    raise ValueError('the job says no')\n")
    done = installation.run("run", "query", f"job={job}", *SHORT)
    assert done.returncode == 1, done.stderr
    record = json.loads(done.stdout)
    assert record["status"] == "failed" and "ValueError: the job says no" in record["reasons"][0], record["reasons"]
    assert record["reasons"][0].endswith("driver-0.log: ValueError: the job says no")
    starts = (installation.results / "attempts" / record["attempt"] / "supervisor.jsonl").read_text()
    assert starts.count('"start"') == 1, "it would say no again"


def test_an_unmodified_program_recovers(installation: Installation) -> None:
    """Recovery by lag; with a reference that identifies outputs, also by latency."""
    program = (
        f"application={EXAMPLES / 'kafka_word_count.py'}",
        "application_arguments={bootstrap} {input} {output} {checkpoint} {interval_ms}",
    )
    alone = measured(installation, "program", *program, *KILL)
    metrics = alone["metrics"]
    assert metrics["latency_ms"]["p50"] is None and metrics["recovery"]["latency_limit_ms"] is None
    assert set(metrics["not_measured"]) == {"latency_ms", "audit"}
    assert metrics["recovery"]["reload_s"] is not None and metrics["cpu_cores"]["executors"] > 0
    with_reference = measured(installation, "program", *program, *SHORT, f"reference={EXAMPLES / 'word_count.py'}")
    assert with_reference["metrics"]["latency_ms"]["p50"] > 0 and with_reference["metrics"]["not_measured"] is None
    exact(with_reference)


def test_a_program_with_another_checkpoint_is_reported(installation: Installation, tmp_path: Path) -> None:
    arguments = f"application_arguments={{bootstrap}} {{input}} {{output}} {tmp_path / 'own'} {{interval_ms}}"
    done = installation.run("run", "program", f"application={EXAMPLES / 'kafka_word_count.py'}", arguments, *SHORT)
    assert done.returncode == 1, done.stderr
    record = json.loads(done.stdout)
    assert record["status"] == "failed" and "use {checkpoint}" in record["reasons"][0], record["reasons"]


def test_sessions_over_replayed_clicks_are_exact_under_a_kill(installation: Installation) -> None:
    record = measured(installation, "query", f"job={EXAMPLES / 'sessions.py'}", *CLICKS, *KILL)
    exact(record)
    metrics = record["metrics"]
    assert metrics["latency_ms"]["p50"] > 0 and metrics["recovery"]["reload_s"] is not None
    assert metrics["data"]["records"] == 1500 and metrics["data"]["cycles"] > 4


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with new_cluster() as made:
        yield made


def test_a_sink_in_postgresql_is_read_back_after_a_kill(installation: Installation, cluster: Cluster) -> None:
    job = (f"job={EXAMPLES / 'stream_static_join.py'}", f"arguments.database={cluster.address}")
    record = measured(installation, "query", *job, *CLICKS, *KILL)
    exact(record)
    assert "sink" in record["metrics"]["not_measured"]["latency_ms"]
    (table,) = cluster.query("SELECT tablename FROM pg_tables WHERE tablename LIKE 'clicks_%'").split()
    assert int(cluster.query(f"SELECT count(*) FROM {table}")) >= record["metrics"]["audit"]["expected"] > 5000


JAVA = """
import org.apache.spark.sql.*;
import org.apache.spark.sql.streaming.Trigger;
import static org.apache.spark.sql.functions.*;
public class Count {
  public static void main(String[] args) throws Exception {
    SparkSession spark = SparkSession.builder().appName("Count").getOrCreate();
    Dataset<Row> lines = spark.readStream().format("kafka")
      .option("kafka.bootstrap.servers", args[0]).option("subscribe", System.getenv("FAULTLINE_INPUT"))
      .option("startingOffsets", "earliest").load().selectExpr("CAST(value AS STRING) AS line");
    lines.select(explode(split(col("line"), " ")).alias("key")).groupBy("key").count()
      .selectExpr("key", "CAST(count AS STRING) AS value").writeStream().format("kafka")
      .option("kafka.bootstrap.servers", args[0]).option("topic", System.getenv("FAULTLINE_OUTPUT"))
      .option("checkpointLocation", System.getenv("FAULTLINE_CHECKPOINT")).outputMode("update")
      .trigger(Trigger.ProcessingTime(args[1] + " milliseconds")).start().awaitTermination();
  }
}
"""


def test_a_jar_that_was_compiled_here_recovers(installation: Installation, tmp_path: Path) -> None:
    (tmp_path / "Count.java").write_text(JAVA)
    compile_for_spark(tmp_path / "Count.java", tmp_path)
    jar = tmp_path / "count.jar"
    pack_jar(jar, tmp_path, "Count.class")
    words = (f"application={jar}", "main_class=Count", "application_arguments={bootstrap} {interval_ms}")
    record = measured(installation, "program", *words, *KILL, f"reference={EXAMPLES / 'word_count.py'}")
    exact(record)
    assert record["metrics"]["recovery"]["reload_s"] is not None


def test_another_build_of_spark_runs_an_experiment(installation: Installation, tmp_path: Path) -> None:
    """A copy of Spark: its own workers start its executors, and a kill is detected."""
    home = tmp_path / "spark" / "pyspark"
    shutil.copytree(spark_home(), home, copy_function=os.link)
    added = installation.run("build", "add", "twin", "--spark-home", str(home))
    assert added.returncode == 0, added.stderr
    try:
        record = measured(installation, "word_count", "spark_build=twin", "state_mb=0", *KILL)
        exact(record)
        assert record["environment"]["versions"]["build"].startswith("twin, Spark")
        workload = json.loads((installation.results / "attempts" / record["attempt"] / "workload.json").read_text())
        command = workload["processes"][0]["command"]
        assert command[0] == str(home / "bin" / "spark-submit")
        work = installation.home / "spark" / "work"
        assert not list(work.glob("build-twin/worker-*/app-*")), "removed with the attempt"
        (home / "jars" / "more.jar").touch()
        refused = installation.run("run", "word_count", "spark_build=twin", *SHORT)
        assert refused.returncode == 2 and "spark_build: jars" in refused.stderr
    finally:
        assert installation.run("build", "remove", "twin").returncode == 0
    states = installation.run("doctor", "--json").stdout
    assert "twin" not in states


def test_a_recorded_topic_is_replayed_byte_for_byte(installation: Installation, tmp_path: Path) -> None:
    """Keys, headers and times of a topic filled by another program."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    from generators.data_files import read_data
    from generators.producer import PHASE

    broker, topic = client(installation.settings), f"clicks-{os.getpid()}"
    admin = AdminClient(broker)  # the request ends with it
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(30)
    producer = Producer(broker)
    sent = [(b"k%d" % (n % 3), b"v%d" % n, 1_795_608_000_000 + 10 * n) for n in range(500)]
    for key, value, at in sent:
        producer.produce(topic, value, key, timestamp=at, headers=[("h", key)])
    producer.produce(topic, b"primer", b"x", headers=[(PHASE, b"primer")])
    assert producer.flush(30) == 0
    file = tmp_path / "clicks.parquet"
    done = installation.run("export-topic", topic, "--to", str(file))
    assert done.returncode == 0 and "500 records" in done.stderr, done.stderr
    data = read_data(str(file))
    assert sorted(zip(data.keys, data.values, data.times_ms, strict=True)) == sorted(sent)
    assert data.times_ms == sorted(data.times_ms) and all(
        one == [("h", key)] for one, key in zip(data.headers, data.keys, strict=True)
    )
    again = installation.run("export-topic", topic, "--to", str(file))
    assert again.returncode == 2 and "exists" in again.stderr
    inputs = []
    for _ in range(2):
        words = (f"job={EXAMPLES / 'word_count.py'}", f"data={file}", "data_pace=recorded", "seed=3", "--keep-topics")
        record = measured(installation, "query", *words, *SHORT)
        exact(record)
        topic = read_plan(Attempt(installation.settings.attempts / record["attempt"])).topics["input"].name
        found = [one for one in read_topic(installation.settings, topic) if not one.primer]
        assert record["metrics"]["data"]["cycles"] > 1 and len(found) > len(sent)
        inputs.append([(one.key, one.value) for one in found])
    assert inputs[0] == inputs[1], "the same bytes on the same partitions, in the same order"
    nowhere = installation.run("export-topic", "no-such-topic", "--to", str(tmp_path / "b.parquet"))
    assert nowhere.returncode == 2 and "no such topic" in nowhere.stderr
