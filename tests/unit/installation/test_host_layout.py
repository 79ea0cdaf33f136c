"""Hosts get a network that nobody on this machine has, or has a way to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from faultline.installation.hosts import layout
from faultline.installation.hosts.layout import choose_hosts
from faultline.system.errors import ConfigError
from faultline.system.settings import Settings, load_settings


def chosen(folder: Path, monkeypatch: pytest.MonkeyPatch, addresses: Sequence[str], routes: Sequence[str]) -> str:
    """The address of this machine in the network that is chosen, where it has these addresses and routes."""
    told = {
        "address": [
            {"addr_info": [{"family": "inet", "local": one} for one in addresses]},
            {"addr_info": [{"family": "inet6", "local": "fe80::1"}]},
            {},
        ],
        "route": [{"dst": one} for one in ["default", "192.0.2.0/24", *routes]],
    }
    for what, answer in told.items():
        (folder / what).write_text(json.dumps(answer))
    ip = folder / "ip"
    ip.write_text(f'#!/bin/sh\n[ "$1" = -j ] && cat {folder}/"$2"\n')
    ip.chmod(0o700)
    monkeypatch.setattr(layout, "found", lambda _: str(ip))
    monkeypatch.setattr(layout, "require_means", lambda: None)
    home = folder / "home"
    home.mkdir(exist_ok=True)
    settings: Settings = load_settings()
    return choose_hosts(Settings(settings.root, home, home), 3).conductor


@pytest.mark.parametrize(
    ("addresses", "routes", "conductor"),
    [
        ([], [], "10.77.0.1"),
        (["10.77.0.9"], [], "10.77.1.1"),
        (["10.77.0.9"], ["10.77.1.0/24", "10.77.2.7"], "10.77.3.1"),
        ([], ["10.77.0.0/17", "10.78.0.0/16", "10.7.0.0/16"], "10.77.128.1"),
        ([], ["0.0.0.0/1", "128.0.0.0/1"], "10.77.0.1"),
    ],
)
def test_a_network_that_is_used_or_reached_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, addresses: list[str], routes: list[str], conductor: str
) -> None:
    assert chosen(tmp_path, monkeypatch, addresses, routes) == conductor


def test_where_a_way_leads_to_all_of_them_there_are_no_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ConfigError, match=r"^--hosts: all networks from 10\.77\.0 to 10\.77\.255 are in use; .*ip route"
    ):
        chosen(tmp_path, monkeypatch, [], ["10.0.0.0/8"])
