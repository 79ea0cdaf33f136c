"""The third walk: an engine is added by one folder in `engines`, and by nothing else.

A copy of the sources gets it; what asks the registry, from `prepare` to `judge`, is then asked in a process of its own.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest

from faultline.engines.registry import engine_of_plan
from faultline.experiment.attempt import Attempt
from faultline.experiment.attempt_plan import read_plan
from faultline.records.judge.judge import judge
from tests.support.walks import Tree
from tests.unit.scenario import Scenario
from tests.unit.synthetic import Synthetic

FILE = "include/faultline/engines/slate/engine.py"
# Raw files of Spark that the slate replaces.
SPARKS = ("batches.json", "listener.jsonl", "checkpoint.json", "spark-logs")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    made = Tree.at(tmp_path_factory.mktemp("walk"), {FILE: "slate.py"})
    (made.root / FILE).with_name("__init__.py").touch()
    return made


def test_nothing_else_is_touched(tree: Tree) -> None:
    tree.check_differences()


def test_its_traces_are_judged_like_those_of_spark(tree: Tree, tmp_path: Path) -> None:
    folder = Synthetic(Scenario()).write(tmp_path)
    wanted = judge(folder).as_dict()
    assert wanted["status"] == "valid" and wanted["metrics"]["recovery"]["detection_s"] == 0.35
    found = asdict(engine_of_plan(read_plan(Attempt(folder))).traces(folder))
    for name in SPARKS:
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    lines = (folder / "recorder.jsonl").read_text().splitlines(keepends=True)
    (folder / "recorder.jsonl").write_text("".join(line for line in lines if '"executors", "app_id"' not in line))
    (folder / "slate.json").write_text(json.dumps(found))
    question = """
import json, sys
from pathlib import Path
from faultline.records.judge.judge import judge
print(json.dumps(judge(Path(sys.argv[1])).as_dict()))
"""
    (answer,) = tree.ask(question, folder)
    judged = json.loads(answer)
    assert judged.pop("artifacts") != wanted.pop("artifacts")  # Spark's files are not there
    assert judged == json.loads(json.dumps(wanted))


def test_it_is_prepared_submitted_supervised_and_removed(tree: Tree, tmp_path: Path) -> None:
    question = """
import json, sys
from dataclasses import replace
from pathlib import Path
from faultline.experiment.attempt import write_json
from faultline.system.endpoints import Endpoints
from faultline.system.errors import ConfigError, InfrastructureError
from faultline.system.journal import read_journal
from faultline.system.settings import DEFAULT_PORTS, Settings, ROOT
from faultline.engines.registry import engine_of_plan, engine_of
from faultline.engines.runtime import Runtime
from faultline.experiment.config import parse_configuration
from faultline.experiment.run import run_of
from faultline.lifecycle.context import RunContext
from faultline.lifecycle import collect, prepare, start, workload_supervisor
from faultline.lifecycle.attempt_processes import workload_failure
from faultline.lifecycle.environment import describe_environment

folder = Path(sys.argv[1])
settings = Settings(ROOT, folder / "home", folder / "results")
config = parse_configuration({"fault": "none"})
print(engine_of(config).name, engine_of(parse_configuration({"workload": "pi"})).name)
print(describe_environment(settings, config, "17")["spark_conf"])
try:
    prepare.check_configuration(parse_configuration({"fault": "none", "executors": 3}))
except ConfigError as error:
    print(error)

Endpoints.embedded = classmethod(lambda cls, ports, placement, logins: cls("kafka", "", "", str(folder), "", ""))
attempt = prepare.make_attempt(prepare.Order(config), settings, "17")
run = run_of(attempt, settings)
plan = run.plan
print(plan.engine.addresses == {"wall": str(folder)}, sorted(plan.places.holds))
engine = engine_of_plan(plan)
print(plan.engine.name, plan.workload_bootstrap, engine.name)
start.SERVICES_TIMEOUT_S = 0.1
start.kafka_ready = lambda bootstrap, secrets: True
off = replace(plan, endpoints=replace(plan.endpoints, engine="/nowhere"))
try:
    start.await_services(RunContext(settings, attempt, off, None))
except InfrastructureError as error:
    print(error)

submission = engine.submit(run, Runtime(folder))
(kept,) = submission.processes
own = {"role": kept.program.role, "command": list(kept.program.command), "env": dict(kept.program.environment)}
own |= {"restart_delay_s": kept.restart_delay_s, "max_restarts": kept.max_restarts}
specification = {"processes": [own], "ends_itself": submission.stops_on_request}
attempt.gate.touch()
print(workload_supervisor.WorkloadSupervisor(run, specification).run())
print([line["event"] for line in read_journal(attempt.supervisor_journal)])
write_json(attempt.folder / "workload.json", specification)
print(workload_failure(run, None))
began = attempt.folder / "slate.json.began"
print(began.exists())
collect.remove_working_data(run)
print(began.exists())
"""
    answers = [re.sub(r"(?<=folder missing); .*", "", line) for line in tree.ask(question, tmp_path)]
    assert answers == [
        "slate spark",
        "{'slate.chalk': 'white', 'slate.executors': '2'}",
        "executors: got 3; expected at most 2",
        "True ['kafka', 'wall']",
        "slate kafka slate",
        "services: slate: folder missing",
        "3",
        "['start', 'exit', 'restart', 'start', 'exit', 'stop']",
        "workload: exited 2 times; driver-1.log: (empty)",
        "True",
        "False",
    ]


def test_a_conflicting_engine_fails_at_import_with_its_file(tree: Tree, tmp_path: Path) -> None:
    """Conflicts are listed in tests/unit/engines/test_registry.py."""
    change = ('frozenset({"aligned"})', 'frozenset({"exactly"})')
    question = """
try:
    import faultline.engines.registry
except ValueError as error:
    print(error)
"""
    (answer,) = tree.changed(tmp_path / "tree", change).ask(question)
    assert "capability exactly" in answer and "slate/engine.py" in answer
