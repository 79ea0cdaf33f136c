"""Preflight checks of a target: certificates, secrets, versions, hosts and storage."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from faultline.experiment.config import parse_configuration
from faultline.installation.targets import machines, preflight, restrictions, spark_preflight
from faultline.installation.targets.restrictions import (
    check_target,
    require_storage,
    require_victims,
    unavailable_figures,
)
from faultline.system.endpoints import Endpoints
from faultline.system.errors import ConfigError, FaultlineError, InfrastructureError
from faultline.system.settings import Settings
from faultline.system.target_registry import Target, register, target_folder, write_endpoints
from tests.support.acceptor import LOCAL
from tests.support.pages_server import pages
from tests.support.refusals import refused


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    made = Settings(tmp_path, tmp_path / "home", tmp_path / "results")
    register(made, Target("lab"))
    return made


def endpoints(page: str = "http://127.0.0.1:1", **more: Any) -> Endpoints:
    return Endpoints(
        kafka=f"{LOCAL}:1", kafka_detoured="", kafka_detour="", engine="spark://127.0.0.1:7077", engine_ui=page,
        airflow="", target="lab", **more,
    )  # fmt: skip


LOOKS = {
    "kafka": "kafka_preflight.check_connection", "kafka login": "kafka_preflight.check_login",
    "kafka rights": "kafka_preflight.check_rights", "kafka topics": "kafka_preflight.check_foreign_topics",
    "storage": "machines.check_storage", "host a": "machines.check_host", "spark": "spark_preflight.check_master",
    "spark version": "spark_preflight.check_versions", "spark login and storage": "spark_preflight.run_probe",
}  # fmt: skip
AT_ONCE = ["kafka", "kafka login", "storage", "host a", "spark", "spark version"]


def test_slow_checks_run_after_changes_and_others_each_time(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, looked, wrong = Target("lab", hosts=("a",)), list[str](), dict[str, FaultlineError]()
    register(settings, lab)
    folder = target_folder(settings, "lab")
    folder.mkdir()
    write_endpoints(settings, endpoints(logins=str(folder), hosts={"a": {"host": "10.0.0.7", "port": 22}}))
    (folder / preflight.SPECS_DIGEST).write_text("as it was")
    monkeypatch.setattr(preflight, "find_java", lambda _: SimpleNamespace(home=Path("/java")))
    for what, function in LOOKS.items():

        def check(*_: object, what: str = what) -> dict[str, Any]:
            looked.append(what)
            if what in wrong:
                raise wrong[what]
            return {}

        monkeypatch.setattr(f"faultline.installation.targets.{function}", check)

    def looks() -> list[str]:
        looked.clear()
        preflight.require_preflight(settings, lab, lambda _: None)
        return list(looked)

    assert looks() == list(LOOKS)
    assert looks() == AT_ONCE
    for what in AT_ONCE:
        wrong[what] = ConfigError(f"of {what}")
        with pytest.raises(ConfigError, match=f"^of {what}$"):
            looks()
        wrong.clear()
    monkeypatch.setattr(preflight, "version", lambda _: "4.9.9")
    assert looks() == list(LOOKS), "the Spark that is installed here is another"
    assert looks() == AT_ONCE
    (folder / preflight.SPECS_DIGEST).write_text("another password")
    assert looks() == list(LOOKS)


def test_the_page_of_another_master_is_rejected(settings: Settings) -> None:
    workers = [{"state": "ALIVE", "host": LOCAL, "port": 1}]
    page = json.dumps({"url": "spark://a:7078", "workers": workers})
    with pages({"json": page}.get) as address:
        here = settings.for_target(replace(endpoints(address), engine="spark://a:7077"))
        with pytest.raises(ConfigError, match=rf"^Connection s: {address} "):
            spark_preflight.check_master(here, "s")
        # A cluster has several masters, and a host several names, each perhaps with ports of its own.
        gateway = replace(endpoints(address), engine="spark://gateway:17078")
        assert spark_preflight.workers_of(spark_preflight.check_master(settings.for_target(gateway), "s")) == workers
        here = settings.for_target(replace(endpoints(address), engine="spark://b:7077,a:7078"))
        assert spark_preflight.workers_of(spark_preflight.check_master(here, "s")) == workers


@pytest.mark.parametrize("here", ["192.0.2.9", "no-such-host.invalid"])
def test_executors_are_given_an_address_of_this_machine(settings: Settings, here: str) -> None:
    for good in (LOCAL, "localhost"):
        spark_preflight.require_local_address(replace(endpoints(), here=good), "s")
    with pytest.raises(ConfigError, match=f"^Connection s: extra: driver-host: got {here}; "):
        spark_preflight.require_local_address(replace(endpoints(), here=here), "s")


def page_of(version: str) -> str:
    return f'<h3><a href="/">logo</a>\n<span class="version me-3">{version}</span> Spark Master</h3>'


def test_a_worker_of_another_version_is_named(settings: Settings) -> None:
    versions = {"master": page_of("4.2.0"), "old": page_of("4.1.1"), "same": page_of("4.2.0")}
    with pages(versions.get) as address:
        there = settings.for_target(endpoints(f"{address}/master"))

        def state(*names: str) -> dict[str, Any]:
            return {"workers": [
                {"state": "ALIVE", "host": "10.0.0.7", "port": number, "webuiaddress": f"{address}/{name}"}
                for number, name in enumerate(names)
            ] + [{"state": "DEAD", "host": "10.0.0.8", "port": 9, "webuiaddress": f"{address}/old"}]}  # fmt: skip

        assert (
            spark_preflight.check_versions(there, "faultline_spark", state("same"), "4.2.0") == "Spark 4.2.0 on 2 pages"
        )
        with refused("Connection faultline_spark: the worker 10.0.0.7:1: "):
            spark_preflight.check_versions(there, "faultline_spark", state("same", "old"), "4.2.0")
        message = spark_preflight.check_versions(there, "faultline_spark", state("none"), "4.2.0")
        assert "worker 10.0.0.7:0" in message


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("WARN Failed to connect to master h:7077\nCaused by: javax.security.sasl.SaslException: DIGEST-MD5: digest "
         "response format violation. Mismatched response.", "Connection s: password: "),
        ("Caused by: javax.crypto.AEADBadTagException: Tag mismatch!", "Connection s: password: "),
        ("ERROR TransportClientFactory: Exception while bootstrapping client after 40 ms\n"
         "java.lang.RuntimeException: java.lang.InterruptedException", "Connection s: password: "),
        ("ERROR TransportClientFactory: Exception while bootstrapping client after 9 ms\njava.lang.RuntimeException: "
         "java.io.IOException: Connection from /127.0.0.1:7077 closed", "Connection s: password: "),
        ("java.io.InvalidClassException: org.apache.spark.rpc.netty.RpcEndpointVerifier; local class incompatible",
         "Connection s: "),
        ("ERROR StandaloneSchedulerBackend: All masters are unresponsive! Giving up.", "Connection s: "),
        ("WARN TaskSchedulerImpl: Initial job has not accepted any resources; check", "Connection s: "),
    ],
)  # fmt: skip
def test_what_a_driver_logs_becomes_one_line(line: str, why: str) -> None:
    trouble = spark_preflight.failure_in_log(f"INFO started\n{line}\n", "s")
    assert trouble is not None and str(trouble).startswith(why) and "\n" not in str(trouble)


def test_a_driver_that_works_or_waits_too_long_has_refused_no_secret() -> None:
    after = "ERROR TransportClientFactory: Exception while bootstrapping client after {} ms\n"
    after += "java.lang.RuntimeException: {}\n"
    late = after.format(30001, "java.util.concurrent.TimeoutException: Waited 30 seconds")
    given_up = "ERROR StandaloneSchedulerBackend: All masters are unresponsive! Giving up.\n"
    given_up += after.format(20000, "java.lang.InterruptedException")
    for works in ("INFO SecurityManager: authentication enabled; ui acls disabled\n", late):
        assert spark_preflight.failure_in_log(works, "s") is None
    assert isinstance(spark_preflight.failure_in_log(late + given_up, "s"), InfrastructureError)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({}, None),
        ({"sees": False}, r"t: extra: path: executors on w2 .* cannot access /shared"),
        ({"wrote": "Permission denied"}, r"t: extra: path: .* cannot access /shared: Permission denied"),
        ({"unreadable": ["/x.jar"]}, r"s: executors on w2 \(user 0\) cannot read /x\.jar"),
    ],
)
def test_paths_that_executors_do_not_share_are_reported_by_host(more: dict[str, Any], why: str | None) -> None:
    usual = {"python": "3.11.2", "user": 0, "sees": True, "wrote": None, "unreadable": []}
    executors = [{**usual, "host": "w1"}, {**usual, "host": "w2", **more}]
    with nullcontext() if why is None else pytest.raises(ConfigError, match=f"^Connection {why}"):
        spark_preflight.require_access(executors, "s", "t", Path("/shared"))


def test_a_storage_whose_clock_is_off_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = replace(endpoints(), storage=str(tmp_path))
    assert machines.check_storage(shared, "t").startswith(f"{tmp_path} ")
    now = machines.time.time
    monkeypatch.setattr(machines.time, "time", lambda: now() - 60)
    with pytest.raises(ConfigError, match=r"^Connection t: extra: path: .*\+60\d\d\d ms"):
        machines.check_storage(shared, "t")
    assert list(tmp_path.iterdir()) == []


def test_programs_that_open_their_checkpoint_need_a_folder() -> None:
    hdfs = replace(endpoints(), storage="hdfs://n:1/x")
    for workload in ("nexmark", "topology"):
        asked = parse_configuration({"target": "lab", "workload": workload, "fault": "none"})
        require_storage(endpoints(), asked)
        with pytest.raises(ConfigError, match=f"^workload: {workload} "):
            require_storage(hdfs, asked)
    require_storage(hdfs, parse_configuration({"target": "lab"}))


def test_only_what_can_be_reached_may_be_a_victim(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = [{"state": "ALIVE", "host": LOCAL}, {"state": "ALIVE", "host": "10.0.0.7"}]
    monkeypatch.setattr(restrictions, "master_state", lambda _: {"workers": workers})
    kill, control = parse_configuration({"target": "lab"}), parse_configuration({"target": "lab", "fault": "none"})
    with pytest.raises(ConfigError, match=r"^fault: executors of lab .*10\.0\.0\.7"):
        require_victims(endpoints(), kill)
    require_victims(endpoints(), control)
    require_victims(endpoints(), parse_configuration({"target": "lab", "fault": "driver"}))
    require_victims(endpoints(hosts={"a": {"host": "10.0.0.7"}}), kill)
    missing, roles = unavailable_figures(endpoints()), ("kafka", "executors", "python_workers")
    assert set(missing) == {f"{one}.{role}" for one in ("cpu_cores", "rss_mb") for role in roles}
    assert "10.0.0.7" in missing["cpu_cores.executors"]
    assert set(unavailable_figures(endpoints(hosts={"a": {"host": "10.0.0.7"}}))) == {"cpu_cores.kafka", "rss_mb.kafka"}
    with pytest.raises(ConfigError, match=r"^fault: "):
        require_victims(endpoints(""), kill)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"target": "lap"}, "target: 'lap'"),
        ({"fault": "kafka"}, "fault: kafka: lab's kafka"),
        ({"fault": "worker"}, "fault: worker: lab's worker"),
        ({"fault": "any"}, "fault: any: lab's worker"),
        ({"commit_mode": "none"}, "commit_mode: none keeps state on this machine's RAM disk"),
        ({"fault_plan": {"faults": [{"victim": "kafka", "action": "delay", "at_s": 40, "duration_s": 5,
                                     "delay_ms": 100}]}}, "fault_action: delay "),
        ({"workload": "program", "application": "/a.py", "fault": "none"}, "workload: program "),
        ({"workload": "topology", "parallelism": "1-2-2-1", "mechanisms": "all", "topology": {"queue": "memcached"}},
         "workload: topology needs a memcached"),
    ],
)  # fmt: skip
def test_what_a_target_cannot_have_is_refused_by_its_key(settings: Settings, values: dict[str, Any], why: str) -> None:
    check_target(settings, parse_configuration({}))
    check_target(settings, parse_configuration({"target": "lab"}))
    with refused(why):
        check_target(settings, parse_configuration({"target": "lab", **values}))


def test_where_an_experiment_ran_is_part_of_what_it_is() -> None:
    here, same, lab = (parse_configuration(one).config_id for one in ({}, {"target": "embedded"}, {"target": "lab"}))
    assert here == same != lab
