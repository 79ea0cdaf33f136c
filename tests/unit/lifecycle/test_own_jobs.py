"""Preparation of user jobs: copy, build label and refusals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from faultline.experiment.attempt import Attempt
from faultline.experiment.config import Configuration, parse_configuration
from faultline.experiment.job_file import read_job
from faultline.lifecycle import prepare
from faultline.lifecycle.collect import _job_fields
from faultline.lifecycle.environment import job_hashes
from faultline.lifecycle.prepare import check_configuration, copy_job, labelled_order
from faultline.system import hashes
from faultline.system.errors import ConfigError
from faultline.system.hashes import cached_hash
from faultline.system.process_ledger import end_processes, processes_with_mark
from faultline.system.process_tags import RUN_MARK
from faultline.system.settings import ROOT
from faultline.system.waiting import wait_until

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
OWN: dict[str, Any] = {"workload": "query", "job": "/j.py"}
PROGRAM: dict[str, Any] = {"workload": "program", "application": "/a.py"}
AT_RECORD = {"faults": [{"victim": "driver", "action": "kill", "at_record": 30_000}]}
BY_RECORD = OWN | {"data": "/a.csv", "fault_plan": AT_RECORD}
QUERY = "def query(records, config):\n    return records\n"


def own(path: Path, **more: Any) -> Configuration:
    return parse_configuration({"workload": "query", "job": str(path), **more})


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.py"
    (tmp_path / "helper.py").write_text("x = 1\n")
    path.write_text(f"from helper import x\nJOB = {{'arguments': {{'a': 1}}}}\n{QUERY}")
    return path


def test_an_attempt_keeps_the_job_as_it_was(tmp_path: Path, job: Path) -> None:
    attempt = Attempt(tmp_path / "attempt")
    attempt.folder.mkdir()
    copy_job(own(job), attempt)
    job.write_text("changed")
    assert sorted(one.name for one in attempt.job.iterdir()) == ["helper.py", "job.py"]
    assert "JOB" in (attempt.job / "job.py").read_text()
    reported = _job_fields(attempt, {"job": "job.py"})
    assert reported["job"] == str(attempt.job / "job.py") and reported["attempt"] == "attempt"
    copy_job(parse_configuration({}), Attempt(tmp_path / "none"))
    assert _job_fields(attempt, {"tuples": "words"}) == {}


def test_its_content_is_part_of_the_build_and_not_of_the_configuration(tmp_path: Path, job: Path) -> None:
    data = tmp_path / "a.jsonl"
    data.write_text('{"a": 1}\n')
    config = own(job, data=str(data))
    before = job_hashes([config])
    assert sorted(Path(name).name for name in before) == ["a.jsonl", "helper.py", "job.py"]
    for changed, content in ((data, '{"a": 2}\n'), (tmp_path / "helper.py", "x = 2\n")):
        before = job_hashes([config])
        changed.write_text(content)
        assert {name for name, expected in job_hashes([config]).items() if expected != before[name]} == {str(changed)}
    assert own(job, data=str(data)).config_id == config.config_id
    data.unlink()
    job.unlink()
    assert job_hashes([config]) == {}, "`prepare` reports the missing file"
    assert job_hashes([parse_configuration({})]) == {}


def test_a_file_is_hashed_once_while_nothing_changes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    whole = hashes.file_hash

    def noted(file: Path) -> str:
        read.append(file)
        return whole(file)

    monkeypatch.setattr(hashes, "file_hash", noted)
    data = tmp_path / "a.jsonl"
    data.write_text("1")
    os.utime(data, (1, 1))
    assert cached_hash(data) == cached_hash(data) == whole(data) and read == [data]
    data.write_text("2")
    assert cached_hash(data) == cached_hash(data) == whole(data) and len(read) == 3, (
        "what changed just now may do so again"
    )
    os.utime(data, (1, 2))
    assert cached_hash(data) == cached_hash(data) == whole(data) and len(read) == 4


def test_the_load_of_recorded_times_is_theirs(tmp_path: Path, job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rate is ignored."""
    data = tmp_path / "a.jsonl"
    data.write_text("".join(f'{{"t": {second}}}\n' for second in range(1000, 1010)))
    reported = {"data": str(data), "data_time": "t", "data_pace": "recorded", "duration_s": 80, "fault": "none"}
    check_configuration(own(job, rate=0.001, **reported))
    monkeypatch.setattr(prepare.shutil, "disk_usage", lambda folder: SimpleNamespace(free=10_000_000))
    check_configuration(own(job, rate=200_000, **reported))
    with pytest.raises(ConfigError, match=r"^rate: got 200,000 records/s for 100 s"):
        check_configuration(own(job, rate=200_000, data=str(data), duration_s=80, fault="none"))
    with pytest.raises(ConfigError) as refused:
        check_configuration(own(job, data_speed=5000, **reported))
    assert str(refused.value).startswith("data_speed: got 5,000 records/s for 100 s")
    assert str(refused.value).endswith("lower it, or duration_s to 20")
    with pytest.raises(ConfigError, match=r"data_speed: "):
        check_configuration(own(job, data_speed=600_000, **reported))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (BY_RECORD | {"data_time": "t", "data_pace": "recorded"}, "fault_plan: "),
        ({"workload": "query"}, "job: "),
        ({"workload": "query", "job": "job.py"}, "job: "),
        ({"workload": "word_count", "job": "/job.py"}, "job: "),
        ({"workload": "program"}, "application: "),
        ({"workload": "program", "application": "/a.exe"}, "application: "),
        (PROGRAM | {"jars": "b.jar"}, "jars: "),
        (PROGRAM | {"application_arguments": "{topic}"}, "application_arguments: "),
        (PROGRAM | {"application_arguments": "'"}, "application_arguments: "),
        (PROGRAM | {"commit_mode": "none"}, "commit_mode: "),
        ({"data": "/a.txt"}, "data: "),
        (OWN | {"data_key": "k"}, "data_key: "),
        (OWN | {"data": "/a.csv", "skew": 1}, "skew: "),
        (OWN | {"data": "a.csv"}, "data: "),
        (OWN | {"data": "/a.csv", "data_speed": 2}, "data_speed: "),
        (OWN | {"arguments": {"a": [1]}}, "arguments.a: "),
    ],
)  # fmt: skip
def test_what_contradicts_itself_is_refused_by_name(values: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_configuration(values)
    assert expected in str(refused.value)


def test_what_is_not_there_is_refused_before_anything_starts(tmp_path: Path, job: Path) -> None:
    jar = tmp_path / "a.jar"
    with zipfile.ZipFile(jar, "w") as content:
        content.writestr("META-INF/MANIFEST.MF", "Manifest-Version: 1.0\n")
    broken = tmp_path / "broken.py"
    broken.write_text("def main(:\n")
    program = {"workload": "program", "application": str(jar)}
    cases = [
        (own(tmp_path / "no.py"), "job: "),
        (own(job, arguments={"b": 1}), "arguments.b: "),
        (own(job, commit_mode="none"), "commit_mode: "),
        (own(job, data=str(tmp_path / "no.csv")), "data: "),
        (own(job, data=str(job)), "data: "),
        (parse_configuration({**program, "application": "/no.jar"}), "application: "),
        (parse_configuration(program), "main_class: "),
        (parse_configuration({**program, "main_class": "a.B", "reference": "/no.py"}), "reference: "),
        (parse_configuration({**program, "application": str(broken)}), "application: "),
    ]
    for config, expected in cases:
        with pytest.raises(ConfigError) as refused:
            check_configuration(config)
        assert expected in str(refused.value), expected
    check_configuration(own(job))
    check_configuration(parse_configuration({**program, "main_class": "a.B"}))


def test_what_a_job_forks_is_ended_with_its_attempt(tmp_path: Path) -> None:
    """The forked process has only the inherited environment; other processes are kept."""
    command = [sys.executable, "-c", "import time; time.sleep(900)"]
    forked, unrelated = (
        subprocess.Popen(command, env={**os.environ, RUN_MARK: name}) for name in ("20261125T000000Z-forked", "another")
    )
    try:
        wait_until(lambda: forked.pid in found("20261125T000000Z-forked"), timeout_s=120, what="the fork")
        assert end_processes(processes_with_mark(RUN_MARK, "20261125T000000Z-forked")) == [forked.pid]
        assert not found("20261125T000000Z-forked") and unrelated.poll() is None
    finally:
        for process in (forked, unrelated):
            process.kill()
            process.wait()


def found(attempt: str) -> set[int]:
    return {process.pid for process in processes_with_mark(RUN_MARK, attempt)}


def test_files_of_one_name_cannot_be_stored_together(tmp_path: Path, job: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "job.py").write_text(QUERY)
    config = parse_configuration({"workload": "program", "application": str(job), "reference": str(other / "job.py")})
    with pytest.raises(ConfigError, match="^application: "):
        copy_job(config, Attempt(tmp_path))


def test_a_refusal_names_a_missing_job(tmp_path: Path, job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record of the refusal describes the order despite the error."""
    from faultline.lifecycle.prepare import Order
    from faultline.system.settings import Settings

    config = own(job)
    job.unlink()
    described = labelled_order(Order(config), Settings(ROOT, tmp_path / "h", tmp_path / "r"), "17")
    assert json.dumps(described.config) and described.config["job"] == str(job)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_what_they_say(example: Path) -> None:
    """Job examples declare their outputs, and each example names its command."""
    assert f"./faultline job check examples/{example.name}" in example.read_text()
    if example.stem != "kafka_word_count":
        assert read_job(str(example)).files == {example.name: example}
