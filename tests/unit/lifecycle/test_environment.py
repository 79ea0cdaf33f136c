"""Build label: it changes with everything that changes the measurement."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from faultline.engines.spark.build_rules import READERS, program_hashes
from faultline.experiment.build import BuildSpec
from faultline.experiment.config import parse_configuration
from faultline.lifecycle import build_checkout as subject
from faultline.lifecycle.build_checkout import build_of
from faultline.lifecycle.environment import describe_environment
from faultline.lifecycle.machine import cgroup_limits, machine_facts, processor
from faultline.records.environment import RecordEnvironment
from faultline.system.errors import ConfigError
from faultline.system.settings import ROOT, Settings


def test_a_workloads_program_is_part_of_the_build_and_a_reader_is_not(tmp_path: Path) -> None:
    (tmp_path / "queries").mkdir()
    (tmp_path / "queries" / "q1.sql").write_text("SELECT 1")
    before = program_hashes(tmp_path)
    assert set(before) == {"queries/q1.sql"}
    (tmp_path / "harvest.py").write_text("1")
    (tmp_path / "harvest_words.py").write_text("1")
    assert program_hashes(tmp_path) == before
    (tmp_path / "queries" / "q1.sql").write_text("SELECT 2")
    assert program_hashes(tmp_path) != before


def test_readers_are_there_and_no_workload() -> None:
    folder = ROOT / "spark_jobs"
    assert all((folder / f"{name}.py").is_file() for name in READERS)
    nexmark = {f"nexmark{name}" for name in ("_query.py", "/events.py", "/queries/q5.sql")}
    assert {"word_count.py", "topology.py", *nexmark} <= program_hashes(folder).keys()


def test_a_targets_broker_gets_no_facts_of_the_embedded_one(tmp_path: Path) -> None:
    settings = Settings(ROOT, tmp_path, tmp_path / "results")
    (tmp_path / "kafka").mkdir()
    (tmp_path / "kafka" / "server.properties").write_text("log.retention.hours=24\n")
    usual = describe_environment(settings, parse_configuration({}), "17")
    there = describe_environment(settings, parse_configuration({"target": "lab"}), "17")
    assert usual["kafka_conf"] == {"log.retention.hours": "24"} and "kafka" in usual["versions"]
    assert there["kafka_conf"] is None
    assert usual["versions"].keys() - there["versions"].keys() == usual["jvm"].keys() - there["jvm"].keys() == {"kafka"}


# --- what the system says of the machine, from files as Linux writes them


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")


def test_the_processor_is_named_if_known(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    assert processor(file) is None
    file.write_text("processor\t: 0\nmodel name\t: Some CPU @ 2.50GHz\n\nprocessor\t: 1\nmodel name\t: Some CPU\n")
    assert processor(file) == "Some CPU @ 2.50GHz"
    file.write_text("processor\t: 0\nBogoMIPS\t: 48.00\n")  # as on ARM
    assert processor(file) is None


VERSION_2 = {
    "groups": "0::/user.slice/job",
    "fs/user.slice/job/cpu.max": "max 100000",
    "fs/user.slice/job/memory.max": "1073741824",
    "fs/user.slice/cpu.max": "150000 100000",
    "fs/user.slice/memory.max": "max",
}
VERSION_1 = {
    "groups": "4:memory:/job\n3:cpu,cpuacct:/job\n1:name=systemd:/\n0::/",
    "fs/cpu,cpuacct/job/cpu.cfs_quota_us": "-1",
    "fs/cpu,cpuacct/job/cpu.cfs_period_us": "100000",
    "fs/memory/job/memory.limit_in_bytes": str(512 * 2**20),
    "fs/memory/memory.limit_in_bytes": "9223372036854771712",
}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"groups": "0::/"}, {"cpus": None, "memory_mb": None}),
        (VERSION_2, {"cpus": 1.5, "memory_mb": 1024}),
        ({**VERSION_2, "fs/user.slice/job/cpu.max": "50000 100000"}, {"cpus": 0.5, "memory_mb": 1024}),
        ({**VERSION_2, "fs/user.slice/job/cpu.max": "a b c"}, {"cpus": 1.5, "memory_mb": 1024}),
        (VERSION_1, {"cpus": None, "memory_mb": 512}),
        ({**VERSION_1, "fs/cpu,cpuacct/job/cpu.cfs_quota_us": "250000"}, {"cpus": 2.5, "memory_mb": 512}),
        # As in a container: its path is that of the host, and what it sees is the root.
        ({"groups": "3:cpu:/docker/a\n", "fs/cpu/cpu.cfs_quota_us": "1000", "fs/cpu/cpu.cfs_period_us": "1000"},
         {"cpus": 1.0, "memory_mb": None}),
    ],
)  # fmt: skip
def test_the_tightest_limit_of_a_group_and_those_above_holds(
    tmp_path: Path, files: dict[str, str], expected: dict[str, float | None] | None
) -> None:
    write(tmp_path, files)
    assert cgroup_limits(tmp_path / "groups", tmp_path / "fs") == expected


def test_a_record_has_the_facts_of_this_machine() -> None:
    known = machine_facts()
    unknown = {name: None for name, field in RecordEnvironment.model_fields.items() if field.is_required()}
    found = RecordEnvironment.model_validate({**unknown, **known})
    assert found.kernel and set(known) <= set(RecordEnvironment.model_fields)


# --- revisions brought here by git: whole or not at all, never changed, and refused by name


def git(root: Path, *words: str) -> str:
    named = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", str(root), *named, *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Checkout with two revisions of one program, and a first revision without any."""
    root = tmp_path / "checkout"
    (root / "spark_jobs" / "nexmark").mkdir(parents=True)
    git(root, "init", "-q")
    git(root, "commit", "-q", "--allow-empty", "-m", "empty")
    git(root, "tag", "v0")
    for version in ("v1", "v2"):
        (root / "spark_jobs" / "a.py").write_text(f"print('{version}')\n")
        (root / "spark_jobs" / "nexmark" / "ü.sql").write_text(version)
        git(root, "add", "-A")
        git(root, "commit", "-q", "-m", version)
        git(root, "tag", version)
    return Settings(root, tmp_path / "home", tmp_path / "results")


def test_a_revisions_programs_are_brought_once_and_stay_as_they_are(settings: Settings) -> None:
    build = build_of(BuildSpec("v1"), settings, key="baseline")
    commit = git(settings.root, "rev-parse", "v1")
    assert (build.commit, build.programs) == (commit, settings.home / "builds" / commit[:12] / "spark_jobs")
    assert (build.programs / "a.py").read_text() == "print('v1')\n"
    assert (build.programs / "nexmark" / "ü.sql").read_text() == "v1"
    before = (build.programs / "a.py").stat().st_mtime_ns
    assert build_of(BuildSpec(commit[:8]), settings, key="baseline").programs == build.programs
    assert (build.programs / "a.py").stat().st_mtime_ns == before
    assert [path.name for path in (settings.home / "builds").iterdir()] == [commit[:12]], "nothing half made is left"
    (settings.root / "spark_jobs" / "a.py").write_text("changed")
    assert (build_of(BuildSpec("HEAD"), settings, key="x").programs / "a.py").read_text() == "print('v2')\n"
    assert build.as_environment() == {"revision": "v1", "settings": {}, "commit": commit}
    installed = build_of(BuildSpec(), settings, key="x")
    assert installed.programs == settings.root / "spark_jobs" and installed.as_environment() is None


def test_what_cannot_be_brought_is_refused_by_name(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="^baseline.revision: got 'v9'"):
        build_of(BuildSpec("v9"), settings, key="baseline")
    with pytest.raises(ConfigError, match="^baseline.revision: got v0"):
        build_of(BuildSpec("v0"), settings, key="baseline")
    build = build_of(BuildSpec("v1"), settings, key="baseline")
    (build.programs / "a.py").write_text("tampered")
    with pytest.raises(ConfigError, match="a.py differs from v1; fix: delete .*builds"):
        build_of(BuildSpec("v1"), settings, key="baseline")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="^baseline.revision: git not found"):
        build_of(BuildSpec("v1"), settings, key="baseline")


def test_a_failed_archive_leaves_nothing(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = subject._git
    broken = lambda root, where, words: None if words[0] == "archive" else asked(root, where, words)  # noqa: E731
    monkeypatch.setattr(subject, "_git", broken)
    with pytest.raises(ConfigError, match="^baseline.revision: git archive failed"):
        build_of(BuildSpec("v1"), settings, key="baseline")
    assert not (settings.home / "builds").exists()
