"""Rules for `spark_conf` and `jvm_options`, and the resulting settings of driver and executors."""

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


def settings_with(values: dict[str, Any], archive: Path | None = None) -> dict[str, str]:
    settings = Settings(ROOT, Path("/a home"), Path("/results"))
    attempt = Attempt(Path("/results/attempts") / ATTEMPT)
    return workload_settings(settings, attempt, parse_configuration(values), 4040, archive=archive)


def test_spark_conf_overrides_defaults_and_is_recorded() -> None:
    values = {"spark_conf": {CHANGELOG: True, "spark.driver.memory": "2g", "spark.my.listener": "x"}}
    config = parse_configuration(values)
    check_conf(config)
    settings = settings_with(values)
    assert (settings[CHANGELOG], settings["spark.driver.memory"], settings["spark.my.listener"]) == ("true", "2g", "x")
    assert settings_with({})[CHANGELOG] == "false"
    assert jvms(config, with_archive=False)["driver"]["heap_mb"] == 2048


def test_state_store_parameter_selects_the_provider() -> None:
    provider = "spark.sql.streaming.stateStore.providerClass"
    assert settings_with({"state_store": "memory"})[provider].endswith(".state.HDFSBackedStateStoreProvider")
    assert settings_with({})[provider].endswith(".state.RocksDBStateStoreProvider")


def driver_of(run: Run) -> SparkProgram:
    """Return the submitted program."""
    (kept,) = submit(run, Runtime(Path("/java"), None)).processes
    assert isinstance(kept.program, SparkProgram) and kept.program.role == "driver"
    return kept.program


class Started:
    """Stream writer that records its trigger."""

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


def test_jvm_options_are_added_by_role() -> None:
    values = {"jvm_options": {"executors": "-XX:+UseParallelGC -Dmy.flag=1"}}
    config, settings = parse_configuration(values), settings_with(values)
    check_conf(config)
    assert {"-XX:+UseParallelGC", "-Dmy.flag=1"} <= set(shlex.split(settings["spark.executor.extraJavaOptions"]))
    assert settings["spark.driver.extraJavaOptions"] == settings_with({})["spark.driver.extraJavaOptions"]
    assert "-XX:+UseParallelGC" in jvms(config, with_archive=False)["executors"]["options"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"spark_conf.spark.executor.memory": "4g"}, "spark_conf.spark.executor.memory: "),
        ({"spark_conf.spark.ui.port": 1}, "spark_conf.spark.ui.port: "),
        ({"spark_conf.spark.sql.shufle.partitions": 4}, "did you mean spark.sql.shuffle"),
        ({"spark_conf.sql.adaptive.enabled": "true"}, "spark_conf.sql.adaptive.enabled: "),
        ({"spark_conf.spark.sql.adaptive.enabled": "maybe"}, "spark.sql.adaptive.enabled: .*true or false"),
        ({"spark_conf.spark.network.timeout": "soon"}, "spark.network.timeout: .*such as 10s"),
        ({f"spark_conf.{CHANGELOG}": "false", "commit_mode": "aligned-changelog"}, "enabled: .*commit_mode"),
        ({"spark_conf.spark.faultline.busy_us_per_record": 3}, "busy_us_per_record: .*build_spec"),
        ({"jvm_options": {"worker": "-Da=b"}}, "jvm_options.worker: "),
        ({"jvm_options": {"driver": "-Xmx4g"}}, "jvm_options.driver: .*executor_memory_mb"),
        ({"jvm_options": {"driver": "UseZGC"}}, "jvm_options.driver: .*'UseZGC'"),
        ({"workload": "known_truth", "spark_conf.spark.x": "1"}, "spark_conf: .*known_truth"),
        ({"workload": "known_truth", "generator_on": "executors"}, "generator_on: .*known_truth"),
        ({"workload": "known_truth", "spark_build": "twin"}, "spark_build: .*known_truth"),
    ],
)  # fmt: skip
def test_invalid_settings_are_rejected(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_engine(parse_configuration(values))


def test_faultline_settings_are_reserved_or_listed_as_variable() -> None:
    for name in sorted(reserved_names(parse_configuration({"fault": "none"}))):
        try:
            check_conf(parse_configuration({"fault": "none", f"spark_conf.{name}": "1g"}))
        except ConfigError as error:
            if "is not" not in str(error):
                continue
        assert name in FREE, name


# Settings of Faultline that users may override.
FREE = {
    CHANGELOG, "spark.driver.memory", "spark.ui.showConsoleProgress", "spark.scheduler.minRegisteredResourcesRatio",
    *NEXMARK_SETTINGS,
}  # fmt: skip


def test_a_setting_in_both_configuration_and_build_is_rejected() -> None:
    config = parse_configuration({"fault": "none", "spark_conf.spark.my.x": "1"})
    with refused("build_spec.settings.spark.my.x: "):
        check_build(parse_build({"settings": {"spark.my.x": "2"}}, "b"), config, key="build_spec")


def test_known_settings_match_the_installed_spark() -> None:
    known = known_settings()
    assert len(known) > 800 and known["spark.executor.memory"].startswith("a size")
    kinds = {"spark.sql.adaptive.enabled": "true or false", "spark.sql.shuffle.partitions": "a whole number"}
    assert kinds.items() <= known.items()
    made_from = json.loads(KNOWN_SETTINGS_FILE.read_text())["pyspark"]
    assert made_from == version("pyspark"), "run .faultline/venv/bin/python scripts/spark_settings.py"


@given(st.integers(1, 10**6), st.sampled_from(["k", "m", "g"]))
def test_heap_sizes_are_parsed_like_spark(number: int, unit: str) -> None:
    assert megabytes(f"{number}{unit}") == int(number * {"k": 1 / 1024, "m": 1, "g": 1024}[unit])


# JVM options, equal with and without a fault.

FAULTS: tuple[dict[str, Any], ...] = (
    {"fault": "executor"}, {"fault": "driver", "fault_action": "term"}, {"fault": "worker"}, {"fault": "any"},
    {"fault": "kafka", "fault_action": "cut"}, {"fault": "executor", "fault_action": "pause"},
    {"fault": "python_worker", "workload": "word_count_python"},
)  # fmt: skip


@pytest.mark.parametrize("archive", [None, Path("/a home/classes.jsa")])
@pytest.mark.parametrize("mode", ["aligned", "aligned-changelog", "none"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: "-".join(map(str, fault.values())))
def test_control_and_faulted_runs_have_equal_settings(fault: dict[str, Any], mode: str, archive: Path | None) -> None:
    """All settings are equal, and the recorded environments too."""
    shared = {"commit_mode": mode, "workload": fault.get("workload", "word_count"), "duration_s": 100.0}
    faulted, control = ({**shared, **one} for one in (fault, {"fault": "none"}))
    assert settings_with(faulted, archive) == settings_with(control, archive)
    both = [jvms(parse_configuration(values), with_archive=True) for values in (faulted, control)]
    assert both[0] == both[1]


@pytest.mark.parametrize("archive", [None, Path("/a home/classes.jsa")])
def test_recorded_options_have_placeholders_for_paths(archive: Path | None) -> None:
    values = {"executor_memory_mb": 700}
    found, settings = (
        jvms(parse_configuration(values), with_archive=archive is not None),
        settings_with(values, archive),
    )
    for role, name in (("driver", "driver"), ("executors", "executor")):
        real = settings[f"spark.{name}.extraJavaOptions"].replace("a home", "a-home").split()
        assert len(real) == len(found[role]["options"])
        for option, recorded in zip(real, found[role]["options"], strict=True):
            assert option.strip('"').partition("=")[0] == recorded.partition("=")[0]
            assert "/" not in recorded or recorded.endswith("=spark-logs/gc-driver-%p.log:time:filecount=0")
        assert settings[f"spark.{name}.memory"] == f"{found[role]['heap_mb']}m"


def test_a_build_cannot_override_configured_settings(tmp_path: Path) -> None:
    config = parse_configuration({"fault": "none"})
    own = {"spark.sql.adaptive.enabled": "false", "spark.executor.memory": "9g"}
    for extra, programs in (({}, ROOT / "spark_jobs"), (own, Path("/old"))):
        engine = PlannedEngine("spark", ADDRESSES, extra, str(programs))
        made = driver_of(run_in(tmp_path / ATTEMPT, config, engine=engine))
        assert made.command[0] == str(programs / "word_count.py")
        assert made.environment["PYTHONPATH"] == made.settings["spark.executorEnv.PYTHONPATH"] == str(programs)
        assert made.settings.get("spark.sql.adaptive.enabled") == ("false" if extra else None)
        assert made.settings["spark.executor.memory"] == f"{config.executor_memory_mb}m", (
            "configured settings take precedence"
        )
