"""The rules of the house: who may import whom, what every named package is used for, and what is written down."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from faultline.base.settings import ROOT
from faultline.experiment.config import Configuration

CODE = ("dags", "plugins", "spark_jobs", "generators", "fault", "include")
NAMED_PACKAGES = {
    "apache-airflow": "airflow.sdk",
    "apache-airflow-providers-apache-spark": "airflow.providers.apache.spark",
    "apache-airflow-providers-apache-kafka": "airflow.providers.apache.kafka",
    "pyspark": "pyspark",
    "pandas": "pandas",
    "psutil": "psutil",
    "paramiko": "paramiko",
}
# A folder may import, of the project's own packages, only these.
MAY_IMPORT = {
    "generators": {"generators"},
    "fault": {"fault"},
    "spark_jobs": {"progress"},
    "include/faultline": {"faultline", "generators", "fault"},
    "dags": {"faultline"},
}
OWN = {"faultline", "generators", "fault", "spark_jobs", "dags", "plugins"}


def sources(folder: str) -> Iterator[Path]:
    return (path for path in (ROOT / folder).rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
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
        for name in imports(path):
            root = name.split(".")[0]
            assert root not in OWN - MAY_IMPORT[folder], f"{path.relative_to(ROOT)} imports {name}"


def test_only_orchestration_and_spark_programs_know_airflow_and_spark() -> None:
    for folder in ("generators", "fault", "include", "spark_jobs"):
        for path in sources(folder):
            roots = {name.split(".")[0] for name in imports(path)}
            if "orchestration" not in path.parts:
                assert "airflow" not in roots, path
            if folder != "spark_jobs":
                assert "pyspark" not in roots, path


def test_the_analysis_knows_no_engine() -> None:
    known = {"faultline.engines.base", "faultline.engines.registry", "faultline.engines.tables"}
    for path in sources("include/faultline/analysis"):
        named = {name for name in imports(path) if name.startswith("faultline.engines")}
        assert named <= known, path


def test_modules_stay_short() -> None:
    for folder in CODE:
        for path in sources(folder):
            assert len(path.read_text().splitlines()) <= 400, path


def test_every_module_says_what_it_is() -> None:
    for folder in (*CODE, "tests"):
        for path in sources(folder):
            assert ast.get_docstring(ast.parse(path.read_text())), path


@pytest.mark.parametrize("name", sorted(Configuration.model_fields))
def test_every_parameter_is_documented(name: str) -> None:
    assert f"| `{name}` |" in (ROOT / "docs" / "matrices.md").read_text()


def test_the_tables_of_parameters_are_those_that_the_code_generates() -> None:
    from faultline.experiment.reference import replace_tables

    text = (ROOT / "docs" / "matrices.md").read_text()
    assert text == replace_tables(text), "run python -m faultline.experiment.reference docs/matrices.md"
