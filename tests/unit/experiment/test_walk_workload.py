"""Extension walkthrough: a workload needs one file in `experiment/workloads` and one program.

The tests add both to a copy of the sources and query everything that derives from the registry in a subprocess.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.walks import Tree

ADDED = {"include/faultline/experiment/workloads/echo.py": "echo_workload.py", "spark_jobs/echo.py": "echo.py"}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    return Tree.at(tmp_path_factory.mktemp("walk"), ADDED)


def test_no_other_file_changes(tree: Tree) -> None:
    tree.check_differences()


def test_its_parameter_belongs_to_the_configuration(tree: Tree) -> None:
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
        print(str(error).partition(":")[0])
"""
    assert tree.ask(question) == [
        "c6f4a5a9ad98",  # unchanged identity of another workload
        "2 0.0 True",
        "echoes",
        "echoes",
        "echoes",
        "workload",
    ]


def test_form_documentation_matrix_and_page_include_it(tree: Tree) -> None:
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
        "['| `echoes` | 1 | ≥ 1, ≤ 9 | Copies of each line that `echo` emits. |']",
    ]


def test_generator_spark_and_harvest_support_it(tree: Tree) -> None:
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
    ("change", "part"),
    [
        (('name = "echo"', 'name = "pi"'), "workload pi "),
        (('{"skewed"}', '{"skewd"}'), "skewd"),
        (("    echoes: int", "    iterations: int"), "parameter iterations "),
        (("    echoes: int", "    rate: int"), "parameter rate "),
    ],
)
def test_invalid_workload_fails_at_import_with_its_file(
    tree: Tree, tmp_path: Path, change: tuple[str, str], part: str
) -> None:
    question = """
try:
    import faultline.experiment.config
except ImportError as error:
    print(error)
"""
    (answer,) = tree.changed(tmp_path / "tree", change).ask(question)
    assert part in answer and "workloads/echo.py" in answer
