"""The first walk: a workload is added by one file in `experiment/workloads` and one program, and by nothing else.

A copy of the sources gets both; whatever derives from the registry is then asked in a process of its own.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.walks import Tree

ADDED = {"include/faultline/experiment/workloads/echo.py": "echo_workload.py", "spark_jobs/echo.py": "echo.py"}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    return Tree.at(tmp_path_factory.mktemp("walk"), ADDED)


def test_nothing_else_is_touched(tree: Tree) -> None:
    tree.require_only_what_was_added()


def test_its_parameter_is_one_of_the_configuration(tree: Tree) -> None:
    question = """
from faultline.system.errors import ConfigError
from faultline.experiment.config import parse_configuration
print(parse_configuration({}).config_id)
config = parse_configuration({"workload": "echo", "echoes": 2})
print(config.echoes, config.state_mb, config.config_id != parse_configuration({"workload": "echo"}).config_id)
echo = {"workload": "echo"}
for wrong in ({**echo, "echoes": 10}, {**echo, "echoes": 3}, {"echoes": 2}, {"workload": "ecco"}):
    try:
        parse_configuration(wrong)
    except ConfigError as error:
        print(error)
"""
    assert tree.ask(question) == [
        "c6f4a5a9ad98",  # the identity of others is what it was
        "2 0.0 True",
        "echoes: 10 is refused: input should be less than or equal to 9",
        "echoes: more than there are partitions; lower it, or raise partitions",
        "echoes: only echo has it; leave it at 1",
        "workload: 'ecco' is not known; did you mean echo?",
    ]


def test_form_documentation_matrix_and_page_know_it(tree: Tree) -> None:
    question = """
from faultline.experiment.config import Configuration
from faultline.experiment.matrix import Matrix
from scripts.reference import parameter_table
from faultline.orchestration.forms import SECTIONS, field_schema
print(SECTIONS["Echo"], "echo" in field_schema("workload")["enum"], field_schema("echoes")["maximum"])
print([line for line in parameter_table(Configuration).splitlines() if "echoes" in line])
"""
    assert tree.ask(question) == [
        "('echoes',) True 9",
        "['| `echoes` | 1 | ≥ 1, ≤ 9 | How often `echo` repeats each line. |']",
    ]


def test_generator_spark_and_harvest_are_told_of_it(tree: Tree) -> None:
    question = """
from pathlib import Path
from faultline.system.settings import load_settings
from faultline.engines.spark.settings import configured_settings, workload_program
from faultline.experiment.config import parse_configuration
from faultline.engines.spark.build_rules import program_hashes
from generators.spec import GeneratorSpec
config = parse_configuration({"workload": "echo", "fault": "none"})
spec = GeneratorSpec(bootstrap="x", topic="x", partitions=2, rate=1, seconds=1, **config.input_source())
print(spec.source, config.paced, config.kind.tuples(config.own), config.kind.latency_method_of(config.own))
folder = load_settings().root / "spark_jobs"
print(workload_program(folder, config).is_file(), "echo.py" in program_hashes(folder))
print(configured_settings(config)["spark.executor.cores"])
"""
    assert tree.ask(question) == ["text True {'tuples': 'words'} batch", "True True", "1"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('name = "echo"', 'name = "pi"'), "the workload pi stands in"),
        (('{"skewed"}', '{"skewd"}'), "echo: unknown capability skewd"),
        (("    echoes: int", "    iterations: int"), "the parameter iterations means something else in"),
        (("    echoes: int", "    rate: int"), "every workload has the parameter rate already"),
    ],
)
def test_nonsense_fails_at_import_with_its_file_named(
    tree: Tree, tmp_path: Path, change: tuple[str, str], said: str
) -> None:
    question = """
try:
    import faultline.experiment.config
except ImportError as error:
    print(error)
"""
    (answer,) = tree.changed(tmp_path / "tree", change).ask(question)
    assert said in answer and "workloads/echo.py" in answer
