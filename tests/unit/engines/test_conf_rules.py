"""Settings of Spark and options of JVMs: what the measuring owns, what Spark knows, and where they arrive."""

from __future__ import annotations

import json
import shlex
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.engines.runtime import Runtime
from faultline.engines.spark.conf_rules import CHANGELOG, KNOWN_SETTINGS_FILE, check_conf, known_settings, megabytes
from faultline.engines.spark.settings import NEXMARK_SETTINGS, jvms, reserved_names, workload_settings
from faultline.engines.spark.submission import SparkProgram, submit
from faultline.experiment.attempt import Attempt
from faultline.experiment.attempt_plan import PlannedEngine
from faultline.experiment.build import parse_build
from faultline.experiment.config import parse_configuration
from faultline.experiment.run import Run
from faultline.lifecycle.build_checkout import check_build
from faultline.lifecycle.prepare import check_engine
from faultline.system.errors import ConfigError
from faultline.system.settings import ROOT, Settings
from spark_jobs.workload_runner import StreamingWorkload
from tests.support.attempts import ADDRESSES, run_in
from tests.support.refusals import refused
from tests.unit.synthetic import ATTEMPT


def told(values: dict[str, Any], archive: Path | None = None) -> dict[str, str]:
    settings = Settings(ROOT, Path("/a home"), Path("/results"))
    attempt = Attempt(Path("/results/attempts") / ATTEMPT)
    return workload_settings(settings, attempt, parse_configuration(values), 4040, archive=archive)


def test_a_setting_takes_the_place_of_the_usual_one_and_is_in_the_record() -> None:
    values = {"spark_conf": {CHANGELOG: True, "spark.driver.memory": "2g", "spark.my.listener": "x"}}
    config = parse_configuration(values)
    check_conf(config)
    settings = told(values)
    assert (settings[CHANGELOG], settings["spark.driver.memory"], settings["spark.my.listener"]) == ("true", "2g", "x")
    assert told({})[CHANGELOG] == "false"
    assert jvms(config, with_archive=False)["driver"]["heap_mb"] == 2048


def test_the_state_store_is_the_one_that_was_chosen() -> None:
    provider = "spark.sql.streaming.stateStore.providerClass"
    assert told({"state_store": "memory"})[provider].endswith(".state.HDFSBackedStateStoreProvider")
    assert told({})[provider].endswith(".state.RocksDBStateStoreProvider")


def driver_of(run: Run) -> SparkProgram:
    """The one process that is submitted."""
    (kept,) = submit(run, Runtime(Path("/java"), None)).processes
    assert isinstance(kept.program, SparkProgram) and kept.program.role == "driver"
    return kept.program


class Started:
    """A writer that notes the trigger of the query that it starts."""

    def __init__(self) -> None:
        self.triggers: list[dict[str, str]] = []

    def trigger(self, **given: str) -> Started:
        self.triggers.append(given)
        return self

    def start(self) -> Started:
        return self


@pytest.mark.parametrize(("mode", "trigger"), [("unaligned", "realTime"), ("aligned", "processingTime")])
def test_commit_mode_unaligned_is_submitted_as_a_real_time_query(
    mode: str, trigger: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_in(tmp_path / ATTEMPT, {"fault": "none", "commit_mode": mode, "checkpoint_interval_s": 6})
    command = driver_of(run).command
    program = json.loads(Path(command[command.index("--config") + 1]).read_text())
    spark = SimpleNamespace(conf=SimpleNamespace(get=lambda name, default: default))
    started = Started()
    monkeypatch.setattr(StreamingWorkload, "_writer", lambda *_: started)
    StreamingWorkload(spark, lambda records, _: records, program).start(0)  # type: ignore[arg-type]
    assert started.triggers == [{trigger: "6000 milliseconds"}]


def test_options_are_added_to_the_jvms_they_are_meant_for() -> None:
    values = {"jvm_options": {"executors": "-XX:+UseParallelGC -Dmy.flag=1"}}
    config, settings = parse_configuration(values), told(values)
    check_conf(config)
    assert {"-XX:+UseParallelGC", "-Dmy.flag=1"} <= set(shlex.split(settings["spark.executor.extraJavaOptions"]))
    assert settings["spark.driver.extraJavaOptions"] == told({})["spark.driver.extraJavaOptions"]
    assert "-XX:+UseParallelGC" in jvms(config, with_archive=False)["executors"]["options"]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"spark_conf.spark.executor.memory": "4g"}, "spark.executor.memory: follows from executor_memory_mb"),
        ({"spark_conf.spark.ui.port": 1}, "spark_conf.spark.ui.port: stays as it is, because"),
        ({"spark_conf.spark.sql.shufle.partitions": 4}, "Spark has no such setting; did you mean spark.sql.shuffle"),
        ({"spark_conf.sql.adaptive.enabled": "true"}, "does not begin with spark."),
        ({"spark_conf.spark.sql.adaptive.enabled": "maybe"}, "'maybe' is not true or false; give one"),
        ({"spark_conf.spark.network.timeout": "soon"}, "'soon' is not a time, such as 10s"),
        ({f"spark_conf.{CHANGELOG}": "false", "commit_mode": "aligned-changelog"}, "use aligned to vary it"),
        ({"spark_conf.spark.faultline.busy_us_per_record": 3}, "give it in build_spec"),
        ({"jvm_options": {"worker": "-Da=b"}}, "jvm_options.worker: no JVM of that name"),
        ({"jvm_options": {"driver": "-Xmx4g"}}, "-Xmx4g is not to be given"),
        ({"jvm_options": {"driver": "UseZGC"}}, "'UseZGC' is no option of a JVM"),
        ({"workload": "known_truth", "spark_conf.spark.x": "1"}, "spark_conf: the engine known_truth does not read it"),
        ({"workload": "known_truth", "generator_on": "executors"}, "generator_on: the engine known_truth does not"),
        ({"workload": "known_truth", "spark_build": "twin"}, "spark_build: the engine known_truth does not read it"),
    ],
)  # fmt: skip
def test_what_cannot_be_given_is_refused_with_the_remedy(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_engine(parse_configuration(values))


def test_whatever_the_measuring_sets_itself_is_refused_or_may_be_varied_on_purpose() -> None:
    for name in sorted(reserved_names(parse_configuration({"fault": "none"}))):
        try:
            check_conf(parse_configuration({"fault": "none", f"spark_conf.{name}": "1g"}))
        except ConfigError as error:
            if "is not" not in str(error):
                continue
        assert name in FREE, name


# What Faultline sets and whoever likes may set otherwise.
FREE = {
    CHANGELOG, "spark.driver.memory", "spark.ui.showConsoleProgress", "spark.scheduler.minRegisteredResourcesRatio",
    *NEXMARK_SETTINGS,
}  # fmt: skip


def test_a_setting_stands_in_one_place() -> None:
    config = parse_configuration({"fault": "none", "spark_conf.spark.my.x": "1"})
    with refused("build_spec.settings.spark.my.x: is set by the experiment's configuration"):
        check_build(parse_build({"settings": {"spark.my.x": "2"}}, "b"), config, key="build_spec")


def test_spark_knows_its_settings_and_their_kinds() -> None:
    known = known_settings()
    assert len(known) > 800 and known["spark.executor.memory"].startswith("a size")
    kinds = {"spark.sql.adaptive.enabled": "true or false", "spark.sql.shuffle.partitions": "a whole number"}
    assert kinds.items() <= known.items()
    made_from = json.loads(KNOWN_SETTINGS_FILE.read_text())["pyspark"]
    assert made_from == version("pyspark"), "run .faultline/venv/bin/python scripts/spark_settings.py"


@given(st.integers(1, 10**6), st.sampled_from(["k", "m", "g"]))
def test_sizes_of_heaps_are_read_as_spark_does(number: int, unit: str) -> None:
    assert megabytes(f"{number}{unit}") == int(number * {"k": 1 / 1024, "m": 1, "g": 1024}[unit])


# ---- What the workload's JVMs are told_with: the same with and without a fault ----

FAULTS: tuple[dict[str, Any], ...] = (
    {"fault": "executor"}, {"fault": "driver", "fault_action": "term"}, {"fault": "worker"}, {"fault": "any"},
    {"fault": "kafka", "fault_action": "cut"}, {"fault": "executor", "fault_action": "pause"},
    {"fault": "python_worker", "workload": "word_count_python"},
)  # fmt: skip


@pytest.mark.parametrize("archive", [None, Path("/a home/classes.jsa")])
@pytest.mark.parametrize("mode", ["aligned", "aligned-changelog", "none"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: "-".join(map(str, fault.values())))
def test_a_control_is_told_what_a_faulted_run_is(fault: dict[str, Any], mode: str, archive: Path | None) -> None:
    """All of it, not the options of Java alone; and the environment of the record says so of both."""
    shared = {"commit_mode": mode, "workload": fault.get("workload", "word_count"), "duration_s": 100.0}
    faulted, control = ({**shared, **one} for one in (fault, {"fault": "none"}))
    assert told(faulted, archive) == told(control, archive)
    both = [jvms(parse_configuration(values), with_archive=True) for values in (faulted, control)]
    assert both[0] == both[1]


@pytest.mark.parametrize("archive", [None, Path("/a home/classes.jsa")])
def test_a_record_names_the_options_without_places(archive: Path | None) -> None:
    values = {"executor_memory_mb": 700}
    found, settings = jvms(parse_configuration(values), with_archive=archive is not None), told(values, archive)
    for role, name in (("driver", "driver"), ("executors", "executor")):
        real = settings[f"spark.{name}.extraJavaOptions"].replace("a home", "a-home").split()
        assert len(real) == len(found[role]["options"])
        for option, said in zip(real, found[role]["options"], strict=True):
            assert option.strip('"').partition("=")[0] == said.partition("=")[0]
            assert "/" not in said or said.endswith("=spark-logs/gc-driver-%p.log:time:filecount=0")
        assert settings[f"spark.{name}.memory"] == f"{found[role]['heap_mb']}m"


def test_a_build_under_test_brings_its_programs_and_settings_and_overrides_nothing(tmp_path: Path) -> None:
    config = parse_configuration({"fault": "none"})
    own = {"spark.sql.adaptive.enabled": "false", "spark.executor.memory": "9g"}
    for extra, programs in (({}, ROOT / "spark_jobs"), (own, Path("/old"))):
        engine = PlannedEngine("spark", ADDRESSES, extra, str(programs))
        made = driver_of(run_in(tmp_path / ATTEMPT, config, engine=engine))
        assert made.command[0] == str(programs / "word_count.py")
        assert made.environment["PYTHONPATH"] == made.settings["spark.executorEnv.PYTHONPATH"] == str(programs)
        assert made.settings.get("spark.sql.adaptive.enabled") == ("false" if extra else None)
        assert made.settings["spark.executor.memory"] == f"{config.executor_memory_mb}m", "what is decided wins"
