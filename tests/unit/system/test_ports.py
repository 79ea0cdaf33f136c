"""Ports that are chosen before they are used."""

from __future__ import annotations

import socket
from pathlib import Path

from faultline.system.settings import DEFAULT_PORTS, HOST, free_port, port_is_free


def test_a_free_port_is_none_that_the_kernel_gives_out_meanwhile() -> None:
    given_out = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = {free_port() for _ in range(20)}
    assert len(ports) > 15 and all(max(DEFAULT_PORTS.values()) < port < max(given_out, 25_000) for port in ports)
    for port in ports:
        with socket.create_server((HOST, port)):
            assert not port_is_free(port)
