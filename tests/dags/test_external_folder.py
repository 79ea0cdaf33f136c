"""DAG folder in an external Airflow: `install` creates it, `uninstall` removes it, all else is unchanged."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as bounds
from hypothesis import strategies as some

from faultline.experiment.matrices import MATRICES
from faultline.orchestration.external.dag_export import describe_dag, exported_dags
from faultline.orchestration.external.dag_installer import (
    DAG_FILE,
    INSTALLATION_FILE,
    ExternalInstall,
    install,
    uninstall,
)
from faultline.orchestration.planning import SEARCH_PARAMS
from faultline.system.errors import ConfigError, InfrastructureError
from faultline.system.settings import Settings

CONNECTIONS = {
    "kafka_default": {"conn_type": "kafka", "extra": '{"sasl.password": "hu5h-hu5h"}'},
    "spark_default": {"conn_type": "spark", "host": "spark://127.0.0.1", "port": 7077},
    "spark_local": {"conn_type": "spark", "host": "local[2]"},
}
DAGS = [describe_dag(one, list(CONNECTIONS)) for one in exported_dags()]
PREFIX = "bench_"
MADE = {f"{PREFIX}{one}" for one in CONNECTIONS}


class Fake:
    """Fake external Airflow."""

    def __init__(self, connections: Mapping[str, Any] = {}, pools: set[str] | None = None) -> None:
        self.kept: dict[str, Any] = {"theirs": {"conn_type": "http"}, **connections}
        self.slots, self.known = {"default_pool"} | (pools or set()), {"their_dag"}
        self.breaks: str | None = None
        self.goes_on: dict[str, list[str]] = {}
        self.pools = lambda: set(self.slots)
        self.connections = lambda: set(self.kept)
        self.dags = lambda: set(self.known)
        self.delete_pool = self.slots.remove
        self.delete_connection = self.kept.pop

    def state(self) -> Any:
        return (dict(self.kept), self.pools(), self.dags())

    def add_pool(self, name: str) -> None:
        self._break("pool")
        self.slots.add(name)

    def add_connections(self, wanted: Mapping[str, Mapping[str, Any]]) -> None:
        assert not self.kept.keys() & wanted.keys(), "one that is there is never written"
        self.kept.update({name: dict(one) for name, one in wanted.items()})

    def replace_connections(self, wanted: Mapping[str, Mapping[str, Any]]) -> None:
        assert self.kept.keys() >= wanted.keys()
        self.kept.update({name: dict(one) for name, one in wanted.items()})

    def active_runs(self, dag: str) -> list[str]:
        assert dag in self.known, "Airflow would not know it"
        return self.goes_on.get(dag, [])

    def delete_dag(self, name: str) -> None:
        self._break("dag")
        self.known.remove(name)

    def _break(self, what: str) -> None:
        if self.breaks == what:
            raise InfrastructureError(f"{what}: broken")


@pytest.fixture
def into(tmp_path: Path) -> Path:
    folder = tmp_path / "dags"
    folder.mkdir()
    (folder / "their_dag.py").write_text("# theirs\n")
    return folder


def whole(into: Path, airflow: Fake) -> Any:
    """Return everything that an installation could change."""
    files = {str(path.relative_to(into)): path.read_text() for path in into.rglob("*") if path.is_file()}
    return airflow.state(), files


def put(into: Path, airflow: Fake, *, dry_run: bool = False, connections: Mapping[str, Any] = CONNECTIONS) -> list[str]:
    expected, here = list[str](), Settings(into.parent, into.parent / "home", into.parent / "results")
    install(ExternalInstall(into, PREFIX, "bench"), airflow, here, connections, DAGS, expected.append, dry_run=dry_run)
    return expected


def take(into: Path, airflow: Fake, *, dry_run: bool = False) -> list[str]:
    expected: list[str] = []
    uninstall(ExternalInstall(into, PREFIX, "other"), airflow, expected.append, dry_run=dry_run)
    return expected


@given(some.sets(some.sampled_from(sorted(MADE))), some.booleans(), some.integers(1, 2))
@bounds(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_uninstall_restores_the_state_before_install(into: Path, there: set[str], pool: bool, times: int) -> None:
    airflow = Fake({one: {"edited": True} for one in there}, {f"{PREFIX}conductor"} if pool else set())
    before = whole(into, airflow)
    for _ in range(times):
        put(into, airflow)
    assert MADE <= airflow.connections() and f"{PREFIX}conductor" in airflow.pools()
    assert {name: airflow.kept[name] for name in there} == {one: {"edited": True} for one in there}
    airflow.known |= {f"{PREFIX}{one['dag']}" for one in DAGS}  # it has read them
    take(into, airflow)
    assert whole(into, airflow) == before and [one.name for one in into.iterdir()] == ["their_dag.py"]


def test_a_dag_that_is_stored_once_more_while_its_file_goes_is_removed_again(into: Path) -> None:
    """A DAG processor may still be parsing the removed file."""
    airflow = Fake()
    put(into, airflow)
    first, *others = (f"{PREFIX}{one['dag']}" for one in DAGS)
    airflow.known |= {first, *others}

    def late(pool: str) -> None:
        airflow.slots.remove(pool)
        airflow.known.add(first)

    airflow.delete_pool = late
    take(into, airflow)
    assert airflow.known == {"their_dag"}


def test_a_dry_run_lists_all_changes_and_makes_none(into: Path) -> None:
    airflow = Fake({f"{PREFIX}kafka_default": {}})
    before = whole(into, airflow)
    expected = put(into, airflow, dry_run=True)
    assert f"Connection {PREFIX}kafka_default: exists, unchanged" in expected
    assert f"pool {PREFIX}conductor: created with 1 slot" in expected
    assert whole(into, airflow) == before
    assert put(into, airflow) == expected[:-1]
    after = whole(into, airflow)
    assert f"Connection {PREFIX}spark_local: removed" in take(into, airflow, dry_run=True)
    assert whole(into, airflow) == after


def test_no_secret_stands_in_the_folder(into: Path) -> None:
    airflow = Fake()
    put(into, airflow)
    assert "hu5h" not in str(whole(into, airflow)[1])


def test_a_second_uninstall_completes_a_failed_one(into: Path) -> None:
    airflow = Fake()
    before = whole(into, airflow)
    airflow.breaks = "pool"
    with pytest.raises(InfrastructureError, match="pool: broken"):
        put(into, airflow)
    assert DAG_FILE not in {path.name for path in into.rglob("*")}
    take(into, airflow)
    assert whole(into, airflow) == before
    airflow.breaks = "dag"
    put(into, airflow)
    airflow.known.add(f"{PREFIX}experiment")
    after = airflow.state()
    with pytest.raises(InfrastructureError, match="uninstall again"):
        take(into, airflow)
    assert airflow.state() == after, "it stopped there"
    airflow.breaks = None
    take(into, airflow)
    assert whole(into, airflow) == before


def test_an_active_run_prevents_the_removal(into: Path) -> None:
    airflow = Fake()
    put(into, airflow)
    airflow.known.add(f"{PREFIX}recovery")
    airflow.goes_on[f"{PREFIX}recovery"] = ["manual__1"]
    before = whole(into, airflow)
    with pytest.raises(ConfigError, match="DAG bench_recovery: run manual__1 is active"):
        take(into, airflow)
    assert whole(into, airflow) == before


def test_a_second_install_renews_what_the_first_one_made_and_nothing_else(into: Path) -> None:
    airflow = Fake({f"{PREFIX}spark_local": {"host": "local[7]"}})
    put(into, airflow)
    moved = {name: {**one, "port": 9} for name, one in CONNECTIONS.items()}
    expected = put(into, airflow, connections=moved) + put(into, airflow, connections=moved)
    assert [airflow.kept[f"{PREFIX}{name}"]["port"] for name in ("kafka_default", "spark_default")] == [9, 9]
    assert airflow.kept[f"{PREFIX}spark_local"] == {"host": "local[7]"}
    assert f"Connection {PREFIX}kafka_default: updated" in expected
    take(into, airflow)
    assert airflow.connections() == {"theirs", f"{PREFIX}spark_local"}


def test_names_that_are_taken_and_files_that_were_changed_are_refused(into: Path) -> None:
    airflow = Fake()
    airflow.known.add(f"{PREFIX}recovery")
    before = airflow.state()
    with pytest.raises(ConfigError, match="DAG bench_recovery exists"):
        put(into, airflow)
    airflow.known.discard(f"{PREFIX}recovery")
    (into / "bench").mkdir()
    with pytest.raises(ConfigError, match="choose another prefix"):
        put(into, airflow)
    (into / "bench").rmdir()
    put(into, airflow)
    (into / "bench" / DAG_FILE).write_text("# mine now")
    with pytest.raises(ConfigError, match="changed since install"):
        take(into, airflow)
    assert airflow.state() != before and (into / "bench" / DAG_FILE).read_text() == "# mine now"


@pytest.mark.parametrize(("prefix", "queue"), [("", "q"), ("1x", "q"), ("a/b", "q"), ("a", "q q"), ("a", "")])
def test_names_that_airflow_would_not_take_are_refused(into: Path, prefix: str, queue: str) -> None:
    with pytest.raises(ConfigError, match="--(prefix|queue) "):
        ExternalInstall(into, prefix, queue)
    with pytest.raises(ConfigError, match="--into "):
        ExternalInstall(into / "no", "p", "q")
    with pytest.raises(ConfigError, match="not found"):
        take(into, Fake())


@pytest.fixture
def theirs(into: Path) -> Any:
    """DAGs as the external Airflow imports them."""
    put(into, Fake())
    spec = importlib.util.spec_from_file_location("installed_dags", into / "bench" / DAG_FILE)
    assert spec and spec.loader
    sys.modules["installed_dags"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["installed_dags"]


def test_the_dags_are_those_of_faultline_itself_under_the_prefix(theirs: ModuleType, bag: Any) -> None:
    reported = json.loads(Path(theirs.__file__ or "").with_name(INSTALLATION_FILE).read_text())
    ours = {"experiment", *MATRICES}
    made = theirs.dags(reported)
    assert set(made) == {f"{PREFIX}{name}" for name in ours}
    for name in ours:
        own, thin = bag.dags[name], made[f"{PREFIX}{name}"]
        # The search for a rate needs an Airflow of its own: what comes after it comes after what was before it.
        assert thin.task_dict.keys() == own.task_dict.keys() - {"search"}
        assert dict(thin.params) == {key: value for key, value in dict(own.params).items() if key not in SEARCH_PARAMS}
        for task in (one for one in own.tasks if one.task_id != "search"):
            other, before = thin.get_task(task.task_id), set(task.upstream_task_ids)
            if "search" in before:
                before = before - {"search"} | own.get_task("search").upstream_task_ids
            assert other.upstream_task_ids == before, task.task_id
            assert (other.trigger_rule, other.is_setup, other.is_teardown, other.is_mapped) == (
                task.trigger_rule, task.is_setup, task.is_teardown, task.is_mapped,
            ), task.task_id  # fmt: skip
            assert other.queue == "bench"
            assert other.pool == ("bench_conductor" if name == "experiment" else "default_pool")
            assert other.retries > 0, "a task may be killed"
    assert made["bench_experiment"].max_active_runs == 1


def test_airflow_finds_the_file_in_its_safe_mode_and_it_imports_nothing_of_faultline(theirs: ModuleType) -> None:
    from airflow.utils.file import might_contain_dag_via_default_heuristic

    file = str(theirs.__file__)
    assert might_contain_dag_via_default_heuristic(file)
    text = Path(file).read_text()
    assert "import faultline" not in text and "from faultline" not in text


def test_only_who_needs_them_gets_connections_and_harvest_none_with_a_login() -> None:
    (experiment,) = [one for one in DAGS if one["dag"] == "experiment"]
    given = {one["task"]: one["connections"] for one in experiment["tasks"]}
    assert given["harvest"] == ["spark_local"]
    assert given["provision_topics"] == ["kafka_default", "spark_default"]
    assert given["judge"] == given["require_accepted"] == []
