"""Which service runs on which host, and where each is reached."""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.experiment.attempt import write_json
from faultline.system.endpoints import HERE, HOST, HOSTS_FILE, Endpoints, Placement, read_placement
from faultline.system.errors import ConfigError
from faultline.system.settings import (
    DEFAULT_PORTS,
    choose_ports,
    free_port,
    load_settings,
    port_is_free,
    ports_with,
    workers_of,
)


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
    assert (spread.kafka, spread.kafka_detoured, spread.kafka_detour) == (
        "10.77.0.2:19092", "10.77.0.2:19094", "10.77.0.1:19095"
    )  # fmt: skip
    assert spread.engine == "spark://10.77.0.1:17077" and spread.here == "10.77.0.1"
    assert spread.airflow == here.airflow, "it listens on loopback only"
    assert Endpoints.from_mapping(json.loads(json.dumps(spread.as_mapping()))) == spread


def test_what_up_chose_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_placement(tmp_path) == HERE and not HERE.spread
    placement = Placement.of(3, "10.77.0", "faultl-0a1b2c3d")
    write_json(tmp_path / HOSTS_FILE, placement.as_mapping())
    monkeypatch.setenv("FAULTLINE_HOME", str(tmp_path))
    assert load_settings().placement == placement and load_settings().endpoints.kafka == "10.77.0.2:19092"
    for broken in ("{", "[]", '{"conductor": "x"}', '{"conductor": "x", "bridge": "", "hosts": [{"name": 1}]}'):
        (tmp_path / HOSTS_FILE).write_text(broken)
        with pytest.raises(ConfigError, match=r"hosts.json: is damaged .*down"):
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
