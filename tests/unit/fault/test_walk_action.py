"""Walk-through "add an action with one file in fault/actions": a toy is added to a copy, and no other file changes."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fault.registry import ACTIONS
from faultline.system.settings import ROOT

PACKAGES = ("benchmarks", "fault", "generators", "include", "scripts")
TOY = ROOT / "tests" / "unit" / "toys" / "fill.py"

# Programs run in the copy; the tests check their output.
PLAN = """
from fault.errors import PlanError
from fault.plan import FaultPlan
from faultline.system.errors import ConfigError
from faultline.experiment.config import parse_configuration

fault = {"victim": "executor", "action": "fill", "at_s": 45, "duration_s": 4}
(planned,) = FaultPlan.from_mapping({"faults": [fault]}).resolve(
    rate=1, checkpoint_interval_s=1, snapshot_interval_s=1
)
print(planned.end_s, planned.fault.max_processes)
short = parse_configuration({"fault_action": "fill"})
print(short.fault_action, short.plan().faults[0].duration_s)
for wrong in ({"victim": "driver"}, {"duration_s": None}, {"delay_ms": 3}):
    try:
        FaultPlan.from_mapping({"faults": [{**fault, **wrong}]})
    except PlanError as error:
        print(error)
try:
    parse_configuration({"fault_action": "fil"})
except ConfigError as error:
    print(error)
"""
FORM = """
from faultline.experiment.config import Configuration
from scripts.reference import action_table

schema = Configuration.model_json_schema()["properties"]["fault_action"]
print(schema["enum"])
print("`fill` fills the attempt's folder (`executor` only)" in schema["description"])
print(action_table().splitlines()[-1])
"""
DRY_RUN = """
from faultline.cli.run_command import planned_fault_lines

print(*planned_fault_lines("word_count", ["fault_action=fill", "fault_at_s=41"]))
"""
CONDUCT = """
import json, sys
from pathlib import Path
from fault.injector import Injector
from fault.plan import Fault, FaultPlan
from faultline.experiment.attempt import Attempt
from faultline.system.journal import Journal, read_journal
from faultline.experiment.config import parse_configuration
from faultline.lifecycle.scheduler_input import SchedulerInput
from faultline.lifecycle.fault_scheduler import FaultScheduler
from faultline.lifecycle.ending.undo_replay import replay_undos

class Offsets:
    def read(self, timeout_s):
        return {"0": 1}

attempt = Attempt(Path(sys.argv[1]))
fault = Fault("executor", "fill", at_s=0.1, duration_s=0.2)
planned = FaultPlan((fault,)).resolve(rate=1, checkpoint_interval_s=1, snapshot_interval_s=1)
given = SchedulerInput(attempt.id, planned, duration_s=0.5, bootstrap="", input_topic="in")
conductor = FaultScheduler(given, attempt.folder, injector=Injector(), offsets=Offsets(), progress=None)
print(*conductor.dry_run())
with Journal(attempt.conductor_journal) as journal:
    print(conductor.run(journal))
lines = read_journal(attempt.conductor_journal)
print([line["event"] for line in lines])
settled = next(line for line in lines if line["event"] == "settled")
print(settled["outcome"], settled["detail"])
print(sorted(path.name for path in attempt.folder.glob("filler*")))

# As left by a fault scheduler killed between injection and undo.
config = parse_configuration({"fault_action": "fill"}).model_dump(mode="json")
rest = {"attempt": attempt.id, "repetition": 0, "kafka": {"bootstrap": ""}, "topics": {"input": ""}}
(attempt.folder / "attempt.json").write_text(json.dumps({**rest, "config": config}))
left = [line for line in lines if line["event"] == "undo_registered"]
attempt.conductor_journal.write_text("".join(json.dumps(line) + chr(10) for line in left))
Path(left[0]["fields"]["path"]).write_text("full")
print(replay_undos(attempt), replay_undos(attempt), Path(left[0]["fields"]["path"]).exists())
"""


def contents(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file by path."""
    files = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the packages with the toy among the actions."""
    made = tmp_path_factory.mktemp("house")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, made / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(TOY, made / "fault" / "actions")
    return made


def output_of(house: Path, program: str, *arguments: str) -> list[str]:
    """Run a program in the copy and return its output lines; this tree is not on its path."""
    path = os.pathsep.join([str(house / "include"), str(house)])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, cwd=house, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def test_plans_and_configurations_check_its_parameters(house: Path) -> None:
    assert output_of(house, PLAN) == [
        "49.0 0",
        "fill 3.0",
        "faults.0.action: got fill for driver; expected kill, term, pause, disk_full",
        "faults.0.duration_s: missing for fill; expected seconds",
        "faults.0.delay_ms: not allowed: fill has no delay; fix: remove it",
        "fault_action: got 'fil'; expected a known value; did you mean fill?",
    ]


def test_form_and_documentation_list_it(house: Path) -> None:
    assert output_of(house, FORM) == [
        str([*ACTIONS, "fill"]),
        "True",
        "| `fill` | `executor` | `duration_s` (3) | fills the attempt's folder |",
    ]


def test_dry_run_describes_it(house: Path) -> None:
    assert output_of(house, DRY_RUN) == ["fill the attempt's folder for 3 s at T0 + 41 s"]


def test_scheduler_injects_and_undoes_it_and_replay_repeats_the_undo(house: Path, tmp_path: Path) -> None:
    folder = tmp_path / "20261121T061500Z-3fa9c1"
    folder.mkdir()
    dry, code, events, settled, left, healed = output_of(house, CONDUCT, str(folder))
    assert (dry, code) == ("would fill the attempt's folder for 0.2 s at T0 + 0.1 s", "0")
    acted = ["undo_registered", "invoked", "delivered", "end_offsets", "settled", "undone"]
    assert events == str(["victims", "gate", *acted, "done"])
    assert (settled, left, healed) == ("effective 1000 bytes", "[]", "['remove filler-0'] [] False")


def test_no_other_file_changes(house: Path) -> None:
    for name in PACKAGES:
        mine, its = contents(ROOT / name), contents(house / name)
        added = {"actions/fill.py": its["actions/fill.py"]} if name == "fault" else {}
        assert its == {**mine, **added}, name
