"""Environment of child processes: the required variables, and no secret of the user."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from faultline.cli import main as cli
from faultline.experiment.attempt import write_json
from faultline.system import child_environment as rights
from faultline.system.child_environment import (
    PASSED_NAMES,
    REFUSE_ROOT,
    SHARED_RESULTS,
    caller_umask,
    check_workload_variables,
    clean_environment,
    file_umask,
    set_owner_umask,
    set_private_umask,
    warn_root,
)
from faultline.system.endpoints import HOST, HOSTS_FILE, LOCAL_PLACEMENT, Endpoints, Placement, read_placement
from faultline.system.errors import ConfigError
from faultline.system.settings import (
    DEFAULT_PORTS,
    Settings,
    check_folders,
    choose_ports,
    free_port,
    load_settings,
    port_is_free,
    ports_with,
    workers_of,
)

NAMES = st.from_regex(r"[A-Z_][A-Z0-9_]{0,20}", fullmatch=True)


SECRETS = ["AWS_SECRET_ACCESS_KEY", "FAULTLINE_DATABASE", "FAULTLINE_ADMIN_PASSWORD", "PGPASSWORD"]


@given(NAMES, st.sampled_from(SECRETS))
def test_what_is_not_named_stays_behind(name: str, secret: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(f"MY_{name}", "x")
        patch.setenv(secret, "hidden")
        patch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "postgresql://a:hidden@b/c")
        clean = clean_environment({"OWN": "1"})
        assert "hidden" not in str(clean) and f"MY_{name}" not in clean and clean["OWN"] == "1"
        assert "PATH" in clean


def test_what_the_user_passes_on_reaches_workloads_only(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"MY_KEY": "1", "MY_OTHER": "2", "FAULTLINE_TOPOLOGY_DATABASE": "postgresql://a:b@c/d"}
    for name, value in {**own, PASSED_NAMES: "MY_KEY, MY_OTHER,MISSING", "LC_ALL": "C.UTF-8"}.items():
        monkeypatch.setenv(name, value)
    usual, workload = clean_environment(), clean_environment(for_workload=True)
    assert set(workload) - set(usual) == set(own)
    assert usual["LC_ALL"] == "C.UTF-8"


@given(st.text(st.sampled_from("ab \t\n\"\\';#%=,{}"), max_size=12) | st.text(max_size=12))
def test_what_is_passed_on_arrives_whole_or_is_refused_by_name(value: str) -> None:
    """The variables are read like the supervisor reads them."""
    from supervisor.datatypes import dict_of_key_value_pairs
    from supervisor.options import UnhosedConfigParser, expand

    assume("\0" not in value and value.encode(errors="ignore").decode() == value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PASSED_NAMES, "MY_KEY")
        patch.setenv("MY_KEY", value)
        try:
            check_workload_variables()
        except ConfigError as error:
            assert str(error).startswith("MY_KEY: ")
            return
    assert not any(mark in value for mark in ('"', "\n", " #")), "it would be cut"
    parser = UnhosedConfigParser()
    escaped = value.replace("%", "%%")
    parser.read_string(f'[program:x]\ncommand=x\nenvironment=MY_KEY="{escaped}"\n')
    read = expand(parser.saneget("program:x", "environment", "", do_expand=False), {}, "environment")
    assert dict_of_key_value_pairs(read) == {"MY_KEY": value}


# ---- Root, and access to files of an installation ----


@pytest.mark.parametrize(("user", "refuses", "lines"), [(0, "", 1), (0, "1", None), (1000, "", 0), (1000, "1", 0)])
def test_root_is_warned_once_and_refused_only_by_a_setting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], user: int, refuses: str, lines: int | None
) -> None:
    monkeypatch.setattr(rights.os, "geteuid", lambda: user)
    monkeypatch.setenv(REFUSE_ROOT, refuses)
    warn_root.cache_clear()
    for _ in range(2):
        if lines is None:
            with pytest.raises(ConfigError, match=f"^{REFUSE_ROOT}: "):
                warn_root()
        else:
            warn_root()
    warn_root.cache_clear()
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", lines or 0)


@pytest.mark.parametrize("command", ["demo", "up", "run word_count", "sweep recovery", "test static"])
def test_a_setting_refuses_root_before_anything_is_started(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rights.os, "geteuid", lambda: 0)
    for name, value in {REFUSE_ROOT: "1", "FAULTLINE_HOME": "home", "FAULTLINE_RESULTS": "results"}.items():
        monkeypatch.setenv(name, value if value == "1" else str(tmp_path / value))
    monkeypatch.setattr("tests.run.add_packages", lambda *_: pytest.fail("it went on"))
    warn_root.cache_clear()
    monkeypatch.setattr(sys, "argv", ["faultline", *command.split()])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert not list(tmp_path.iterdir()), "nothing was written"


@pytest.mark.parametrize(("shared", "mode"), [("", 0o700), ("1", 0o750)])
def test_folders_are_closed_to_others(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, shared: str, mode: int
) -> None:
    monkeypatch.setenv(SHARED_RESULTS, shared)
    for folder in (settings.home, settings.results):
        folder.mkdir(mode=0o755)
    check_folders(settings, need_mb=0)
    assert stat.S_IMODE(settings.home.stat().st_mode) == 0o700, "whatever is shared"
    assert stat.S_IMODE(settings.results.stat().st_mode) == mode
    assert file_umask() == 0o777 & ~mode & 0o077


@pytest.mark.parametrize(
    ("mode", "name", "shared"),
    [(0o777, "", ""), (0o770, "", ""), (0o702, "", ""), (0o775, "records", "1"), (0o775, "attempts", "1")],
)
def test_a_folder_that_others_can_write_is_refused(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, mode: int, name: str, shared: str
) -> None:
    """A closed results folder protects it until the group may read that folder."""
    folder = settings.results / name
    folder.mkdir(parents=True)
    settings.results.chmod(0o700)
    folder.chmod(mode)
    if shared:
        monkeypatch.delenv(SHARED_RESULTS, raising=False)
        check_folders(settings, need_mb=0)
        monkeypatch.setenv(SHARED_RESULTS, shared)
    with pytest.raises(ConfigError, match=f"^FAULTLINE_RESULTS: .* chmod go-w {folder}$"):
        check_folders(settings, need_mb=0)
    assert stat.S_IMODE(folder.stat().st_mode) == mode, "its owner decides"
    folder.chmod(0o755)
    check_folders(settings, need_mb=0)
    assert stat.S_IMODE(folder.stat().st_mode) == (0o750 if shared else 0o700)


def test_what_is_for_others_to_read_gets_the_callers_rights(tmp_path: Path) -> None:
    os.umask(0o027)
    set_owner_umask()
    (tmp_path / "own").touch()
    with caller_umask():
        (tmp_path / "report").touch()
    (tmp_path / "after").touch()
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"own": 0o600, "report": 0o640, "after": 0o600}


def test_no_command_makes_what_others_can_change() -> None:
    for umask, left in ((0o000, 0o022), (0o002, 0o022), (0o077, 0o077), (0o027, 0o027)):
        os.umask(umask)
        set_private_umask()
        assert os.umask(0o022) == left


# ---- Hosts and addresses of services ----


@given(st.integers(3, 9))
def test_the_broker_and_every_worker_have_hosts_and_addresses_of_their_own(count: int) -> None:
    placement = Placement.of(count, "10.77.3", "faultl-0a1b2c3d")
    ports = ports_with(count - 1)
    services = ["kafka", *(f"spark-worker-{number}" for number in workers_of(ports))]
    assert [one.service for one in placement.hosts] == services
    addresses = [placement.address(one) for one in services]
    assert len({*addresses, placement.conductor}) == count + 1
    assert placement.address("spark-master") == placement.conductor == "10.77.3.1"
    assert Placement.from_mapping(json.loads(json.dumps(placement.as_mapping()))) == placement
    assert len(set(ports.values())) == len(ports), "no two services have one port"


def test_endpoints_are_loopback_unless_there_are_hosts() -> None:
    here = Endpoints.embedded(DEFAULT_PORTS)
    assert {here.kafka, here.kafka_detour} == {f"{HOST}:19092", f"{HOST}:19095"} and here.here == HOST
    spread = Endpoints.embedded(DEFAULT_PORTS, Placement.of(3, "10.77.0", "faultl-0a1b2c3d"))
    brokers = (spread.kafka, spread.kafka_detoured, spread.kafka_detour)
    assert brokers == ("10.77.0.2:19092", "10.77.0.2:19094", "10.77.0.1:19095")
    assert spread.engine == "spark://10.77.0.1:17077" and spread.here == "10.77.0.1"
    assert spread.airflow == here.airflow, "it listens on loopback only"
    assert Endpoints.from_mapping(json.loads(json.dumps(spread.as_mapping()))) == spread


def test_what_up_chose_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_placement(tmp_path) == LOCAL_PLACEMENT and not LOCAL_PLACEMENT.is_spread
    placement = Placement.of(3, "10.77.0", "faultl-0a1b2c3d")
    write_json(tmp_path / HOSTS_FILE, placement.as_mapping())
    monkeypatch.setenv("FAULTLINE_HOME", str(tmp_path))
    assert load_settings().placement == placement and load_settings().endpoints.kafka == "10.77.0.2:19092"
    for broken in ("{", "[]", '{"conductor": "x"}', '{"conductor": "x", "bridge": "", "hosts": [{"name": 1}]}'):
        (tmp_path / HOSTS_FILE).write_text(broken)
        with pytest.raises(ConfigError, match=r"hosts.json: damaged .*down"):
            read_placement(tmp_path)


# ---- Ports that are chosen before they are used ----


def test_a_free_port_is_none_that_the_kernel_gives_out_meanwhile() -> None:
    given_out = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = {free_port() for _ in range(20)}
    assert len(ports) > 15 and all(max(DEFAULT_PORTS.values()) < port < max(given_out, 25_000) for port in ports)
    for port in ports:
        with socket.create_server((HOST, port)):
            assert not port_is_free(port)


def test_installations_that_start_at_once_choose_other_ports_though_nothing_listens_yet() -> None:
    wanted = {"kafka": free_port()}
    with ExitStack() as first, ExitStack() as second:
        assert choose_ports(wanted, claims=first) == wanted
        assert choose_ports(wanted, claims=second)["kafka"] > wanted["kafka"]
        with pytest.raises(ConfigError, match=r"port kafka=\d+: busy"):
            choose_ports(wanted, frozenset(wanted), second)
    assert choose_ports(wanted, claims=first) == wanted, "the claims end with their installation's start"
    first.close()
