"""Architecture rules: imports between rooms, use of dependencies, and documentation of public names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from faultline.experiment.config import Configuration
from faultline.experiment.matrices import MATRICES
from faultline.system.settings import ROOT

CODE = ("dags", "plugins", "spark_jobs", "generators", "fault", "include", "benchmarks")
NAMED_PACKAGES = {
    "apache-airflow": "airflow.sdk",
    "apache-airflow-providers-apache-spark": "airflow.providers.apache.spark",
    "apache-airflow-providers-apache-kafka": "airflow.providers.apache.kafka",
    "pyspark": "pyspark",
    "pandas": "pandas",
    "psutil": "psutil",
    "paramiko": "paramiko",
}
# By folder, the only project packages that it may import.
MAY_IMPORT = {
    "generators": {"generators"},
    "fault": {"fault"},
    "spark_jobs": set(),
    "include/faultline": {"faultline", "generators", "fault"},
    "dags": {"faultline"},
    "benchmarks": {"benchmarks", "faultline", "generators", "fault"},
}
# Exceptions by module: the Spark job `generate.py` runs the generators on executors; `./faultline bench` and the DAG
# `nightly_speed` load benchmarks on demand.
MAY_ALSO = {"generate.py": {"generators"}, "main.py": {"benchmarks"}, "self_benchmark_dag.py": {"benchmarks"}}
# Rooms of the core, from the top down: a room imports only rooms of later lines.
ROOMS = (
    "__main__", "cli", "orchestration", "reports", "comparison", "lifecycle", "records", "bootstrap", "installation",
    "engines", "experiment", "system",
)  # fmt: skip
# Maximum number of lines of a room without subfolders.
LARGEST_ROOM = 3700
# Modules that may name a workload or an engine; all others ask its registry for capabilities.
AT_HOME = ("cli/build_command.py", "experiment/workloads", "engines/", "comparison/findings")
BY_NAME = re.compile(
    r"""[=!]= ?["'](nexmark|topology|known_truth|spark|flink|pi|word_count\w*|stock_\w+)["']|is_paced"""
)
OWN = {"faultline", "generators", "fault", "spark_jobs", "dags", "plugins", "benchmarks"}


def sources(folder: str) -> Iterator[Path]:
    return (path for path in (ROOT / folder).rglob("*.py"))


@cache
def statements(path: Path) -> list[ast.Import | ast.ImportFrom]:
    """Return the imports of a module, including those in functions and under TYPE_CHECKING."""
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Import | ast.ImportFrom)]


def imports(path: Path) -> Iterator[str]:
    for node in statements(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif node.level == 0:
            yield node.module or ""


@pytest.mark.parametrize("package", NAMED_PACKAGES)
def test_every_named_package_has_a_real_use(package: str) -> None:
    prefix = NAMED_PACKAGES[package]
    users = [
        path for folder in CODE for path in sources(folder) if any(name.startswith(prefix) for name in imports(path))
    ]
    assert users, f"nothing imports {prefix}"
    pinned = (ROOT / "requirements.in").read_text()
    assert f"{package}==" in pinned or f"{package}>=" in pinned


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_dependencies_point_one_way(folder: str) -> None:
    for path in sources(folder):
        may = MAY_IMPORT[folder] | MAY_ALSO.get(path.name, set())
        for name in imports(path):
            root = name.split(".")[0]
            assert root not in OWN - may, f"{path.relative_to(ROOT)} imports {name}"


def test_only_orchestration_and_spark_programs_know_airflow_and_spark() -> None:
    for folder in ("generators", "fault", "include", "spark_jobs"):
        for path in sources(folder):
            roots = {name.split(".")[0] for name in imports(path)}
            if "orchestration" not in path.parts:
                assert "airflow" not in roots, path
            if folder != "spark_jobs":
                assert "pyspark" not in roots, path


def modules() -> dict[str, Path]:
    """Return the files of all modules and packages of the core, by name without `faultline.`."""
    core = ROOT / "include" / "faultline"
    names = {".".join(path.relative_to(core).with_suffix("").parts): path for path in core.rglob("*.py")}
    return {name.removesuffix(".__init__").removesuffix("__init__"): path for name, path in names.items()}


def uses(name: str, known: Mapping[str, Path]) -> set[str]:
    """Return the modules of the core that a module imports."""
    found = set()
    for node in statements(known[name]):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and str(node.module).split(".")[0] == "faultline":
            base = str(node.module).removeprefix("faultline").lstrip(".")
            for alias in node.names:
                inner = f"{base}.{alias.name}".lstrip(".")
                found.add(inner if inner in known else base)
        elif isinstance(node, ast.Import):
            found |= {
                alias.name.removeprefix("faultline.") for alias in node.names if alias.name.startswith("faultline.")
            }
    return (found & known.keys()) - {name, ""}


def test_imports_between_rooms_point_down_only() -> None:
    known = modules()
    level = {room: depth for depth, room in enumerate(ROOMS)}
    upward = [
        f"{name} imports {used}"
        for name in known
        for used in uses(name, known)
        if name and name.split(".")[0] != used.split(".")[0] and level[name.split(".")[0]] >= level[used.split(".")[0]]
    ]
    assert not upward, "\n".join(sorted(upward))


def test_no_modules_import_each_other_in_a_circle() -> None:
    known = modules()
    waiting = {name: uses(name, known) for name in known}
    while free := [name for name, used in waiting.items() if not used & waiting.keys()]:
        for name in free:
            del waiting[name]
    assert not waiting, f"modules in or above an import cycle: {sorted(waiting)}"


def test_a_large_room_has_rooms_of_its_own() -> None:
    for room in (ROOT / "include" / "faultline").iterdir():
        own = sum(len(path.read_text().splitlines()) for path in room.glob("*.py")) if room.is_dir() else 0
        assert own <= LARGEST_ROOM, f"{room.name}: {own} lines"


def test_the_root_of_the_core_holds_entries_only() -> None:
    found = {path.stem for path in (ROOT / "include" / "faultline").glob("*.py")}
    assert found == {"__init__", "__main__", "bootstrap"}


def test_generic_rooms_name_no_workload_and_no_engine() -> None:
    for name, path in modules().items():
        where = path.relative_to(ROOT / "include" / "faultline").as_posix()
        if not where.startswith(AT_HOME):
            lines = [line for line in path.read_text().splitlines() if BY_NAME.search(line)]
            assert not lines, f"{name}: {lines[0].strip()}"


def test_folders_of_unit_tests_are_named_after_rooms() -> None:
    rooms = {*ROOMS, *OWN, "golden", "toys"}
    folders = {path.name for path in (ROOT / "tests" / "unit").iterdir() if path.is_dir()} - {"__pycache__"}
    assert folders <= rooms


def test_the_analysis_knows_no_engine() -> None:
    known = {f"faultline.engines.{name}" for name in ("protocol", "registry", "batches", "work")}
    for path in sources("include/faultline/records/judge"):
        named = {name for name in imports(path) if name.startswith("faultline.engines")}
        assert named <= known, path


# Modules outside `engines` that may import an engine, because they start Spark's services or submit programs.
KNOW_AN_ENGINE = (
    "cli/build_command.py", "installation/", "lifecycle/hooks.py", "orchestration/hooks.py",
    "orchestration/external/hooks.py", "orchestration/local_spark.py",
)  # fmt: skip


def test_other_rooms_do_not_import_an_engine() -> None:
    core, known = ROOT / "include" / "faultline", modules()
    engines = {name.split(".")[1] for name in known if name.startswith("engines.") and name.count(".") > 1}
    assert engines >= {"spark", "flink", "ground_truth"}
    for name, path in known.items():
        where = path.relative_to(core).as_posix()
        if where.startswith(("engines/", *KNOW_AN_ENGINE)):
            continue
        named = {used for used in uses(name, known) if used.startswith(tuple(f"engines.{one}" for one in engines))}
        assert not named, f"{where} imports {sorted(named)}"


# Names that are allowed everywhere: fields of configurations and records, an artifact, a matrix, Connections.
ALLOWED = re.compile(
    r"spark_(conf|build|logs|default|local|and_flink_recovery)\b|spark-logs\b|orchestration\.local_spark|LocalSparkJob"
)
# Further modules that may name Spark: the embedded installation, commands for its services, example values, workload
# programs that a user job must not shadow, Airflow's preloaded modules, a caveat of published pages.
NAME_SPARK = (
    "installation/", "bootstrap.py", "system/endpoints.py", "system/child_environment.py", "system/secrets.py",
    "system/settings.py", "system/target_registry.py", "cli/compare_command.py", "cli/main.py",
    "cli/service_command.py",
    "cli/target_command.py", "experiment/build.py", "experiment/commit_modes.py", "experiment/common_parameters.py",
    "experiment/job_file.py",
    "experiment/matrices.py", "experiment/named_settings.py", "orchestration/executor.py", "reports/markdown/page.py",
)  # fmt: skip


def texts_of(path: Path) -> Iterator[str]:
    """Yield names and strings of a module, without comments and docstrings."""
    tree = ast.parse(path.read_text())
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and node.body
        if isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        values = (getattr(node, name, None) for name in ("id", "attr", "name", "module", "arg", "value"))
        yield from (one for one in values if isinstance(one, str) and id(node) not in docs)


def test_generic_rooms_do_not_name_spark() -> None:
    for name, path in modules().items():
        where = path.relative_to(ROOT / "include" / "faultline").as_posix()
        if not where.startswith((*AT_HOME, *KNOW_AN_ENGINE, *NAME_SPARK)):
            named = [text for text in texts_of(path) if "spark" in ALLOWED.sub("", text).lower()]
            assert not named, f"{name}: {named[0]}"


def test_modules_stay_short() -> None:
    for folder in CODE:
        for path in sources(folder):
            assert len(path.read_text().splitlines()) <= 400, path


def test_every_module_has_a_docstring() -> None:
    for folder in (*CODE, "tests"):
        for path in sources(folder):
            assert path.name == "__init__.py" or re.match(r'(#.*\n)*r?"""\S', path.read_text()), path


@pytest.mark.parametrize("name", sorted(Configuration.model_fields))
def test_every_parameter_is_documented(name: str) -> None:
    assert f"| `{name}` |" in (ROOT / "docs" / "reference" / "parameters.md").read_text()


def test_every_matrix_is_in_the_table_of_matrices() -> None:
    text = (ROOT / "docs" / "reference" / "matrices.md").read_text()
    axes = {name: ", ".join(f"`{axis}`" for axis in spec.axes) for name, spec in MATRICES.items() if spec.axes}
    assert [name for name, listed in axes.items() if f"| `{name}` | {listed} |" not in text] == []


def test_the_tables_of_the_reference_are_up_to_date() -> None:
    from scripts.reference import PARTS, made, replace_part

    for name, part in made().items():
        text = (ROOT / "docs" / PARTS[name][0]).read_text()
        assert text == replace_part(text, name, part), f"{name}: run .faultline/venv/bin/python scripts/reference.py"


def test_every_generated_part_of_the_documentation_has_a_generator() -> None:
    from scripts.reference import PARTS

    for document in (ROOT / "docs").rglob("*.md"):
        named = re.findall(r"<!-- (\w+): generated by scripts/reference.py -->", document.read_text())
        where = document.relative_to(ROOT / "docs").as_posix()
        assert sorted(named) == sorted(name for name, (file, _) in PARTS.items() if file == where), where


def test_one_function_reads_the_plan_of_an_attempt() -> None:
    reads = re.compile(
        r"AttemptPlan\.from_mapping|(?:read_document|loads?|read_(?:text|bytes)|open)\(.*plan(?:\.json|\))"
    )
    found = [
        path.relative_to(ROOT).as_posix()
        for folder in CODE
        for path in sources(folder)
        for line in path.read_text().splitlines()
        if reads.search(line)
    ]
    # `read_plan` reads the file and parses its content.
    assert found == ["include/faultline/experiment/attempt_plan.py"] * 2
