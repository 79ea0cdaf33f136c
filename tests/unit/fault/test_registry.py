"""Registry of actions: discovery, derived tables, refusals, and no comparison of action names."""

from __future__ import annotations

import ast
import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fault.action import UndoSpec
from fault.errors import DeclarationError
from fault.fault_spec import DURATION
from fault.identity import VICTIMS
from fault.plan import Fault
from fault.registry import ACTIONS, ALLOWED, describe_actions, discover
from faultline.experiment.config import Configuration
from faultline.lifecycle.ending.undo_replay import undo_fields, undo_of
from faultline.system.settings import ROOT

ON_HOSTS = ["partition", "loss", "bandwidth", "disk_full", "cpu_pressure", "memory_pressure"]
NAMES = ["kill", "term", "pause", "delay", "reset", "cut", *ON_HOSTS]
TOY = (ROOT / "tests" / "unit" / "toys" / "fill.py").read_text()


def test_actions_are_ordered_by_their_order() -> None:
    assert list(ACTIONS) == NAMES
    assert all(action.name == name for name, action in ACTIONS.items())


def test_derived_tables_match_the_actions() -> None:
    assert list(get_args(Configuration.model_fields["fault_action"].annotation)) == NAMES
    for victim in VICTIMS:
        on_hosts = ("delay", *ON_HOSTS) if victim in ("executor", "worker") else ()
        on_hosts = ("disk_full",) if victim == "driver" else on_hosts
        assert ALLOWED[victim] == (tuple(NAMES) if victim == "kafka" else ("kill", "term", "pause", *on_hosts))
    assert {name for name in NAMES if ACTIONS[name].parameter(DURATION)} == {"pause", "delay", "cut", *ON_HOSTS}
    assert {name for name in NAMES if ACTIONS[name].targets_hosts} == {"delay", *ON_HOSTS}
    assert {name for name in NAMES if ACTIONS[name].ends_victim} == {"kill", "term"}
    assert {name for name in NAMES if ACTIONS[name].uses_proxy} == {"delay", "reset", "cut", "loss"}
    assert ACTIONS["delay"].defaults == {"duration_s": 10.0, "delay_ms": 200.0}
    assert ACTIONS["kill"].defaults == {}
    words = describe_actions()
    assert all(f"`{name}` {ACTIONS[name].does}" in words for name in NAMES)
    assert "`duration_s` is 10 (pause, delay, cut, partition," in words and "`delay_ms` is 200 (delay)" in words


Packages = Callable[..., ModuleType]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Packages]:
    """Return a function that creates a package of such modules in place of `fault.actions`."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def make(**files: str) -> ModuleType:
        folder = tmp_path / "toy_actions"
        folder.mkdir()
        (folder / "__init__.py").write_text("")
        for name, text in files.items():
            (folder / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        return importlib.import_module("toy_actions")

    yield make
    for name in [name for name in sys.modules if name.partition(".")[0] == "toy_actions"]:
        del sys.modules[name]


def test_valid_module_is_discovered(package: Packages) -> None:
    other = TOY.replace('name="fill"', 'name="flood"').replace("order=999", "order=1")
    assert list(discover(package(a=TOY, b=other))) == ["flood", "fill"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("ACTION = Action(", "ACTION = dict(", "ACTION: missing"),
        ('name="fill"', 'name="Fill it"', "name: got 'Fill it'"),
        *(('name="fill"', f'name="{name}"', f"name: got '{name}'") for name in ("", "Fill", "fill it")),
        ('does="fills the attempt\'s folder"', 'does=" "', "does: empty"),
        ('past="filled the folder"', 'past=""', "past: empty"),
        ('when="with the folder filled for {duration_s:g} s"', 'when=""', "when: empty"),
        ("for {duration_s:g} s", "by {delay_ms:g} ms", "when: got 'delay_ms'"),
        ('("executor",)', '("executr",)', "targets: got 'executr'"),
        ('("executor",)', '("moon",)', "targets: got 'moon'"),
        ('("executor",)', '("kafka", "kafka")', "targets: got kafka twice"),
        ('("executor",)', "()", "targets: empty"),
        ("Parameter(DURATION,", 'Parameter("durations",', "parameters: got 'durations'"),
        ("(Parameter(DURATION, default", "2 * (Parameter(DURATION, default", "parameters: got duration_s twice"),
        ("default=3.0", "default=None", "parameters: duration_s: missing default"),
        ("default=3.0", "default=0.0", "parameters: duration_s: got '0.0'"),
        ("default=3.0", "default=3.0, required=False", "parameters: duration_s: got required=False"),
    ],
)
def test_invalid_declaration_names_file_and_field(
    package: Packages, tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert old in TOY
    made = package(fill=TOY.replace(old, new))
    with pytest.raises(DeclarationError) as caught:
        discover(made)
    assert str(caught.value).startswith(f"{tmp_path / 'toy_actions' / 'fill.py'}: {message}")
    assert "\n" not in str(caught.value)


def test_action_names_are_unique(package: Packages, tmp_path: Path) -> None:
    folder = tmp_path / "toy_actions"
    with pytest.raises(DeclarationError) as caught:
        discover(package(fill=TOY, again=TOY))
    assert str(caught.value).startswith(f"{folder / 'fill.py'}: name: got fill;") and str(folder / "again.py") in str(
        caught.value
    )


VALUES = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=4)
FIELDS = st.dictionaries(st.text(), VALUES)


@given(st.sampled_from(NAMES), st.text(min_size=1), FIELDS, st.integers(0, 5))
def test_an_undo_survives_the_journal(action: str, name: str, fields: dict[str, object], fault: int) -> None:
    undo = UndoSpec(action, name, fields)
    line = {"event": "undo_registered", "wall_ns": 1, "mono_ns": 2, **undo_fields(undo, fault)}
    assert undo_of(json.loads(json.dumps(line)), ()) == undo


# Files where the names have another meaning: proxy commands, or one workload or finding.
OTHER_WORDS = {
    "fault/proxy.py",
    "include/faultline/experiment/workloads/known_truth.py",
    "include/faultline/comparison/findings/jiang.py",
}


def test_no_generic_code_compares_action_names() -> None:
    guilty = []
    for folder in ("fault", "include", "dags", "plugins"):
        for path in (ROOT / folder).rglob("*.py"):
            name = str(path.relative_to(ROOT))
            if name in OTHER_WORDS or name.startswith("fault/actions/"):
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                asked = ast.walk(node) if isinstance(node, ast.Compare | ast.match_case) else ()
                guilty += [
                    f"{name}:{one.lineno}" for one in asked if isinstance(one, ast.Constant) and one.value in NAMES
                ]
    assert guilty == []


def test_a_fault_knows_its_action_and_how_many_processes_it_touches() -> None:
    cut = Fault("kafka", "cut", at_s=1, duration_s=1)
    assert cut.definition is ACTIONS["cut"] and cut.max_processes == 0
    assert Fault("executor", "kill", at_s=1, count=3).max_processes == 3
