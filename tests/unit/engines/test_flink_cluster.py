"""Configuration and commands of a Flink cluster, and the SQL of its job."""

from __future__ import annotations

import re
import ssl
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.engines.flink import sql
from faultline.engines.flink.checkpoints import PREFIX
from faultline.engines.flink.cluster import (
    JOB_RESTARTS,
    METASPACE_MB,
    JvmCommands,
    JvmOptions,
    Memory,
    experiment_settings,
    job_id,
    write_configuration,
)
from faultline.engines.flink.conf_rules import check_conf, known_settings
from faultline.engines.flink.distribution import LOCKS, FlinkDistribution
from faultline.engines.flink.launch import incarnation_command
from faultline.engines.flink.tls import make_stores, rest_certificate
from faultline.engines.registry import ENGINES, engine_of
from faultline.engines.supervisor_journal import exit_reason
from faultline.experiment.config import parse_configuration
from faultline.experiment.workloads.sql_file import read_sql
from faultline.installation.kafka import TOPICS
from faultline.lifecycle.prepare import check_engine
from faultline.system.errors import ConfigError
from faultline.system.settings import ROOT

SELECT = "SELECT a AS `key`, b AS `value` FROM records"


def configuration(**values: Any) -> Any:
    return parse_configuration({"engine": "flink", "workload": "word_count", **values})


@given(st.integers(512, 100_000))
def test_heap_and_managed_memory_are_the_memory_of_an_executor(executor_mb: int) -> None:
    memory = Memory(executor_mb)
    settings = {name.rpartition("memory.")[2]: int(value[:-1]) for name, value in memory.settings().items()}
    parts = ("framework.heap.size", "task.heap.size", "managed.size")
    assert sum(settings[name] for name in parts) == executor_mb and all(settings[name] > 0 for name in parts)
    assert settings["jvm-metaspace.size"] == METASPACE_MB


@pytest.mark.parametrize("mode", sorted(ENGINES.by_name["flink"].capabilities.commit_modes))
def test_every_commit_mode_has_its_settings(mode: str) -> None:
    settings = experiment_settings(configuration(commit_mode=mode, checkpoint_interval_s=10))
    cycle = "metrics.reporter.slf4j.interval" if mode == "none" else "execution.checkpointing.interval"
    assert settings[cycle] == "10000ms"
    assert ("execution.checkpointing.interval" in settings) == (mode != "none")
    is_at_least_once = settings.get("execution.checkpointing.mode") == "AT_LEAST_ONCE"
    assert is_at_least_once == (mode == "at-least-once")
    assert ("execution.checkpointing.unaligned.enabled" in settings) == (mode == "unaligned-barriers")


def test_a_job_may_restart_for_each_fault() -> None:
    """With the default heartbeats a loss causes about 30 restarts; a job that always fails ends with its attempts."""
    several = configuration(fault="executor", injections=2, duration_s=400)
    name = "restart-strategy.fixed-delay.attempts"
    assert experiment_settings(several)[name] == str(2 * JOB_RESTARTS)
    assert experiment_settings(configuration(fault="none"))[name] == str(JOB_RESTARTS)


def test_other_settings_are_the_users() -> None:
    """Declared ones, and those of plugins, which resemble none."""
    check_conf(("heartbeat.interval", "table.exec.mini-batch.enabled", "restart-strategy.fixed-delay.attempts",
                "s3.endpoint.of.a.plugin"))  # fmt: skip


@pytest.mark.parametrize("mode", sorted(ENGINES.by_name["flink"].capabilities.commit_modes))
def test_no_setting_that_an_experiment_has_is_misspelled(mode: str) -> None:
    settings = experiment_settings(configuration(commit_mode=mode))
    free = {name for name in settings if not name.startswith(("metrics.reporter.", "traces.reporter."))}
    assert free <= known_settings()


def test_settings_of_the_user_come_last() -> None:
    config = configuration(flink_conf={"restart-strategy.fixed-delay.delay": "5s"})
    assert experiment_settings(config)["restart-strategy.fixed-delay.delay"] == "5s"


@pytest.mark.parametrize(
    ("values", "key"),
    [
        *(({"workload": name}, "workload") for name in ("pi", "topology", "stock_group_by", "stock_join", "nexmark")),
        ({"workload": "word_count_python"}, "workload"),
        ({"spark_conf": {"spark.sql.adaptive.enabled": "false"}}, "spark_conf"),
        ({"fault": "worker"}, "fault"),
        ({"shuffle_partitions": 4}, "shuffle_partitions"),
        ({"snapshot_interval_s": 30}, "snapshot_interval_s"),
        ({"commit_mode": "none"}, "fault"),
        ({"delivery_guarantee": "exactly-once", "commit_mode": "at-least-once"}, "delivery_guarantee"),
        ({"spark_build": "snapshot"}, "spark_build"),
        ({"target": "lab"}, "target"),
        ({"flink_conf": {"heartbeat.timout": "5s"}}, "flink_conf.heartbeat.timout"),
        ({"flink_conf": {"execution.checkpointing.interval": "5s"}}, "flink_conf.execution.checkpointing.interval"),
        ({"flink_conf": {"taskmanager.memory.task.heap.size": "1g"}}, "flink_conf.taskmanager.memory.task.heap.size"),
        ({"flink_conf": {"security.ssl.rest.enabled": "false"}}, "flink_conf.security.ssl.rest.enabled"),
    ],
)
def test_what_flink_lacks_is_refused_by_key(values: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=f"^{key}: "):
        check_engine(configuration(**values))


@pytest.mark.parametrize(
    ("values", "nearest"),
    [
        ({"commit_mode": "unaligned"}, "unaligned-barriers"),
        ({"commit_mode": "aligned-changelog"}, "aligned"),
        ({"engine": "spark", "commit_mode": "at-least-once"}, "unaligned"),
        ({"engine": "spark", "commit_mode": "unaligned-barriers"}, "aligned"),
    ],
)
def test_a_commit_mode_of_another_engine_is_refused_with_the_nearest(values: dict[str, Any], nearest: str) -> None:
    with pytest.raises(ConfigError, match=rf"^commit_mode: got .*; fix: commit_mode={nearest}$"):
        check_engine(configuration(**values))


def test_parameters_of_flink_are_refused_elsewhere() -> None:
    refused = {"spares": 1, "flink_conf": {"heartbeat.timeout": "5s"}, "delivery_guarantee": "exactly-once"}
    for key, value in refused.items():
        with pytest.raises(ConfigError, match=f"^{key}: "):
            check_engine(parse_configuration({"workload": "word_count", key: value}))


def test_the_engine_is_part_of_the_identity_only_if_it_is_named() -> None:
    usual = parse_configuration({"workload": "word_count"})
    assert parse_configuration({"workload": "word_count", "engine": "spark"}).config_id == usual.config_id
    assert configuration().config_id != usual.config_id and engine_of(configuration()).name == "flink"


def test_the_configuration_is_private_and_keeps_its_values(tmp_path: Path) -> None:
    write_configuration(tmp_path, {"a.b": 'x: "y"', "c": "2s"})
    file = tmp_path / "config.yaml"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text() == 'a.b: "x: \\"y\\""\nc: "2s"\n'


def test_stores_are_private_and_the_certificate_belongs_to_its_key(tmp_path: Path) -> None:
    settings = make_stores(tmp_path)
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in tmp_path.iterdir())
    assert {Path(settings[f"security.ssl.{name}.keystore"]).exists() for name in ("internal", "rest")} == {True}
    context = ssl.create_default_context(cafile=rest_certificate(tmp_path))
    context.load_cert_chain(rest_certificate(tmp_path))  # raises if they do not match


# ---- Incarnations ----


def commands(folder: Path) -> JvmCommands:
    flink = FlinkDistribution(folder, folder)
    options = JvmOptions("-Dfaultline.run=a", "file:///logging", "/login", "/scratch")
    return JvmCommands(Path("/j/java"), flink, folder, options)


def test_recorded_options_are_those_of_the_commands(tmp_path: Path) -> None:
    config = configuration(executor_memory_mb=2048)
    described = ENGINES.by_name["flink"].jvms(config, with_archive=False)
    made, given = commands(tmp_path), {"ATTEMPT": "a", "SCRATCH": "/scratch"}
    for role, command in {
        "driver": made.job_manager(job_id("a"), tmp_path / "job.sql"),
        "executors": made.task_manager(Memory(2048)),
    }.items():
        options = [re.sub("ATTEMPT|SCRATCH", lambda name: given[name[0]], one) for one in described[role]["options"]]
        options = [one.replace("configurationFile=FILE", "configurationFile=file:///logging") for one in options]
        assert command[1 : command.index("-cp")] == [one.replace("=FILE", "=/login") for one in options]
        assert f"-Xmx{described[role]['heap_mb']}m" in options
    assert described["executors"]["heap_mb"] == 1024


def test_a_restarted_job_manager_restores_the_newest_complete_checkpoint(tmp_path: Path) -> None:
    checkpoints = tmp_path / job_id("a")
    given = {
        "command": commands(tmp_path).job_manager(job_id("a"), tmp_path / "job.sql"),
        "checkpoints": str(checkpoints),
    }
    assert "--fromSavepoint" not in incarnation_command(given, 1)
    for number in (9, 10):
        (checkpoints / f"{PREFIX}{number}").mkdir(parents=True)
        (checkpoints / f"{PREFIX}{number}" / "_metadata").touch()
    (checkpoints / f"{PREFIX}11").mkdir()
    command = incarnation_command(given, 1)
    at = command.index("--fromSavepoint")
    assert command[at + 1].endswith(f"/{PREFIX}10") and at < command.index("--scriptUri")


def test_a_restarted_task_manager_has_another_resource_id(tmp_path: Path) -> None:
    given = {"command": commands(tmp_path).task_manager(Memory(1024)), "name": "taskmanager-0"}
    assert incarnation_command(given, 7)[-1] != incarnation_command(given, 8)[-1]


def test_a_distribution_of_other_locks_is_not_installed(tmp_path: Path) -> None:
    for name in LOCKS:
        (tmp_path / name).write_text(f"# {name}\n")
    flink = FlinkDistribution(tmp_path, tmp_path)
    with pytest.raises(ConfigError, match="^engine: "):
        flink.require()
    flink.stamp.parent.mkdir(parents=True)
    flink.stamp.write_text(flink.identity())
    flink.require()
    (tmp_path / LOCKS[1]).write_text("# another")
    assert not flink.is_installed()


# ---- SQL ----


@given(st.text(max_size=20))
def test_a_literal_is_closed_where_it_ends(text: str) -> None:
    literal = sql.quoted(text)
    assert literal[0] == literal[-1] == "'" and literal[1:-1].replace("''", "").count("'") == 0
    assert literal[1:-1].replace("''", "'") == text


def test_the_script_names_topics_and_client_properties() -> None:
    tables = sql.KafkaTables("h:1", "in", "out", "g", {"sasl.mechanism": "SCRAM-SHA-512"})
    script = sql.word_count(tables, "it's")
    for part in ("'topic' = 'in'", "'topic' = 'out'", "'properties.sasl.mechanism' = 'SCRAM-SHA-512'", "'it''s'"):
        assert part in script


@pytest.mark.parametrize("mode", ["update", "append"])
def test_only_transactional_outputs_have_a_guarantee(mode: str) -> None:
    """The prefix of the transactions is one that the workload may use, and their timeout exceeds the default 60 s."""
    options = ("'sink.delivery-guarantee' = 'exactly-once'", f"'sink.transactional-id-prefix' = '{TOPICS}1'",
               "'properties.transaction.timeout.ms' = '600000'")  # fmt: skip
    for transactional in (True, False):
        tables = sql.KafkaTables("h:1", "in", "out", f"{TOPICS}1", {}, transactional)
        script = sql.user_query(tables, "q", read_sql(f"{SELECT};").statements({}), mode)
        source, sink = script.split("CREATE TABLE results")
        assert all((one in sink) == transactional and one not in source for one in options)


def test_a_user_query_keeps_the_places_of_its_file() -> None:
    content = (ROOT / "examples" / "orders.sql").read_text(encoding="utf-8")
    tables = sql.KafkaTables("h:1", "in", "out", "g", {})
    for mode, connector in (("update", "'upsert-kafka'"), ("append", "PRIMARY KEY")):
        script = sql.user_query(tables, "it's", read_sql(content).statements({}), mode)
        assert (connector in script) == (mode == "update")
        written = script.splitlines()
        for number, line in enumerate(content.splitlines()):
            if line and not line.startswith("--"):
                assert written[number].startswith(line.rstrip(";")), "Flink's messages name this place"


@pytest.mark.parametrize(
    ("text", "values", "words"),
    [
        (None, {}, "expected a SQL file"),
        ("-- JOB = {'reflects': 'newest'}\n", {}, "newest"),
        ("", {"jars": "/a.jar"}, "jars: unsupported"),
    ],
)
def test_a_job_without_a_form_on_flink_is_refused(
    tmp_path: Path, text: str | None, values: dict[str, Any], words: str
) -> None:
    job = tmp_path / ("job.py" if text is None else "job.sql")
    job.write_text("def query(records, config):\n    return records\n" if text is None else f"{text}{SELECT}")
    config = configuration(workload="query", job=str(job), **values)
    with pytest.raises(ConfigError, match=words) as caught:
        check_engine(config)
    assert str(caught.value).startswith(("job: ", "jars: "))


@pytest.mark.parametrize(("reflects", "method"), [("id", "id"), ("nothing", "none"), ("count", "rank")])
def test_counts_of_a_query_are_matched_by_rank(tmp_path: Path, reflects: str, method: str) -> None:
    job = tmp_path / "job.sql"
    view = "CREATE TEMPORARY VIEW tuples AS SELECT * FROM records;"
    job.write_text(f"-- JOB = {{'reflects': '{reflects}'}}\n{view}{SELECT}")
    found = engine_of(config := configuration(workload="query", job=str(job))).tuples(config)
    assert found[0] == method and found[1]["ranked"] and found[1]["sql"]["select"].strip() == SELECT


def test_a_parser_message_is_the_reason_of_an_end(tmp_path: Path) -> None:
    log = tmp_path / "driver-0.log"
    place = 'SQL parse failed. Encountered "FORM" at line 6, column 1.'
    log.write_text(
        f"Caused by: org.apache.flink.table.api.SqlParserException: {place}\n"
        f"Caused by: org.apache.flink.sql.parser.impl.ParseException: {place[18:]}\n"
        "\tat org.apache.flink.sql.parser.impl.FlinkSqlParserImpl.generateParseException(FlinkSqlParserImpl.java)\n"
        "2026-11-28T05:16:49.090Z ERROR [main] ClusterEntrypoint: Error\n"
    )
    assert exit_reason(log, engine_of(configuration()).error_line).endswith(place)
