"""What the workload's JVMs are told: the same with and without a fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from faultline.engines.running import Runtime
from faultline.engines.spark.settings import jvms, workload_settings
from faultline.engines.spark.submission import submit
from faultline.experiment.attempt import Attempt
from faultline.experiment.config import Configuration, parse_configuration
from faultline.experiment.plan import PlannedEngine
from faultline.system.settings import ROOT, Settings
from tests.support.attempts import ADDRESSES, run_in
from tests.unit.synthetic import ATTEMPT

FAULTS: tuple[dict[str, Any], ...] = (
    {"fault": "executor"}, {"fault": "driver", "fault_action": "term"}, {"fault": "worker"}, {"fault": "any"},
    {"fault": "kafka", "fault_action": "cut"}, {"fault": "executor", "fault_action": "pause"},
    {"fault": "python_worker", "workload": "word_count_python"},
)  # fmt: skip


def told(config: Configuration, archive: Path | None) -> dict[str, str]:
    settings = Settings(ROOT, Path("/a home"), Path("/results"))
    return workload_settings(settings, Attempt(Path("/results/attempts") / ATTEMPT), config, 4040, archive=archive)


@pytest.mark.parametrize("archive", [None, Path("/a home/classes.jsa")])
@pytest.mark.parametrize("mode", ["aligned", "aligned-changelog", "none"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: "-".join(map(str, fault.values())))
def test_a_control_is_told_what_a_faulted_run_is(fault: dict[str, Any], mode: str, archive: Path | None) -> None:
    """All of it, not the options of Java alone; and the environment of the record says so of both."""
    shared = {"commit_mode": mode, "workload": fault.get("workload", "word_count"), "duration_s": 100.0}
    faulted, control = (parse_configuration({**shared, **one}) for one in (fault, {"fault": "none"}))
    assert told(faulted, archive) == told(control, archive)
    assert jvms(faulted, with_archive=True) == jvms(control, with_archive=True)


@pytest.mark.parametrize("archive", [None, Path("/a home/classes.jsa")])
def test_a_record_names_the_options_without_places(archive: Path | None) -> None:
    config = parse_configuration({"executor_memory_mb": 700})
    found, settings = jvms(config, with_archive=archive is not None), told(config, archive)
    for role, name in (("driver", "driver"), ("executors", "executor")):
        real = settings[f"spark.{name}.extraJavaOptions"].replace("a home", "a-home").split()
        assert len(real) == len(found[role]["options"])
        for option, said in zip(real, found[role]["options"], strict=True):
            assert option.strip('"').partition("=")[0] == said.partition("=")[0]
            assert "/" not in said or said.endswith("=spark-logs/gc-driver-%p.log:time:filecount=0")
        assert settings[f"spark.{name}.memory"] == f"{found[role]['heap_mb']}m"


def test_a_build_under_test_brings_its_programs_and_settings_and_overrides_nothing(tmp_path: Path) -> None:
    config, runtime = parse_configuration({"fault": "none"}), Runtime(Path("/java"), None)
    own = {"spark.sql.adaptive.enabled": "false", "spark.executor.memory": "9g"}
    for extra, programs in (({}, ROOT / "spark_jobs"), (own, Path("/old"))):
        engine = PlannedEngine("spark", ADDRESSES, extra, str(programs))
        made = submit(run_in(tmp_path / ATTEMPT, config, engine=engine), runtime)
        assert made.command[0] == str(programs / "word_count.py")
        assert made.environment["PYTHONPATH"] == made.settings["spark.executorEnv.PYTHONPATH"] == str(programs)
        assert made.settings.get("spark.sql.adaptive.enabled") == ("false" if extra else None)
        assert made.settings["spark.executor.memory"] == f"{config.executor_memory_mb}m", "what is decided wins"
