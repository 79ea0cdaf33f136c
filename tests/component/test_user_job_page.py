"""Commands of docs/how-to/measure-your-job.md without measurements; a system test runs those."""

from __future__ import annotations

import re
import shlex
import shutil
from dataclasses import replace

import pytest

from faultline.experiment.job_file import KEYS, PASSED_VALUES, REFLECTS
from faultline.experiment.workloads.user_program import PASSED_VALUES as PROGRAM_VALUES
from faultline.system.settings import ROOT
from tests.support.installation import Installation, make_installation

pytestmark = pytest.mark.timeout(900)

PAGE = (ROOT / "docs" / "how-to" / "measure-your-job.md").read_text(encoding="utf-8")
COMMANDS = [
    shlex.split(line.removeprefix("$ ./faultline "))
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    for line in block.replace("\\\n", " ").splitlines()
]


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """Installation without running services, in a folder with the examples."""
    # An experiment outside this test would refuse the registration of builds.
    made = replace(make_installation(tmp_path_factory.mktemp("own")), given={"FAULTLINE_MACHINE": "own"})
    shutil.copytree(ROOT / "examples", made.home / "examples")
    return made


def test_the_page_names_all_that_can_be_declared() -> None:
    named = set(re.findall(r"`([^`\n]+)`", PAGE))
    assert {*KEYS, *REFLECTS, *PASSED_VALUES} <= named
    assert {f"FAULTLINE_{name.upper()}" for name in PROGRAM_VALUES} <= named


def test_a_new_job_can_be_planned_at_once(installation: Installation) -> None:
    new = next(command for command in COMMANDS if command[:2] == ["job", "new"])
    assert installation.run(*new).returncode == 0
    again = installation.run(*new)
    assert again.returncode == 2 and " exists; " in again.stderr
    assert installation.run("job", "new", "no name").returncode == 2
    assert installation.run("job", "new", "clicks.sql").returncode == 0
    done = installation.run("run", "query", "job=clicks.sql", "--dry-run")
    assert done.returncode == 0, done.stderr
    planned = [command for command in COMMANDS if command[0] == "run" and "orders.parquet" not in " ".join(command)]
    assert len(planned) == 4
    for command in planned:
        done = installation.run(*command, "--dry-run")
        assert done.returncode == 0 and "executor" in done.stdout, (command, done.stderr)
    swept = re.search(r"`\./faultline (sweep [^`]+)`", PAGE)
    assert swept is not None
    done = installation.run(*shlex.split(swept[1]), "--dry-run")
    assert done.returncode == 0 and "checkpoint_interval_s: 2, 10" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("job", "check", "nowhere.py"), "nowhere.py: "),
        (("run", "query", "job=examples/clicks.jsonl", "--dry-run"), "job: "),
        (("run", "query", "job=nowhere.sql", "--dry-run"), "nowhere.sql failed: "),
        (("run", "query", "job=examples/word_count.py", "engine=flink", "--dry-run"), "expected a SQL file"),
        (("run", "query", "job=examples/sessions.py", "arguments.pause=1", "--dry-run"), "did you mean pause_s"),
        (("run", "word_count", "spark_build=snapshot", "--dry-run"), "spark_build: unknown build 'snapshot'"),
        (("build", "add", "mine", "--spark-home", "examples"), "--spark-home: got "),
        (("build", "remove", "mine"), "NAME: unknown build 'mine'"),
        (("compare", "--measure", "installed", "installed"), "B: got installed"),
        (("compare", "a", "b", "rate=1"), "rate=1: "),
        (("export-topic", "orders", "--to", "orders.csv"), "--to: got orders.csv"),
    ],
)
def test_an_error_is_one_line(installation: Installation, words: tuple[str, ...], message: str) -> None:
    done = installation.run(*words)
    assert done.returncode == 2 and message in done.stderr, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
