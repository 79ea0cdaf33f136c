"""Ports that are chosen before they are used."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from faultline.system.errors import ConfigError
from faultline.system.settings import DEFAULT_PORTS, HOST, choose_ports, free_port, port_is_free


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
