"""A hold keeps a service down until its instant, and ends by its own clock."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from faultline.installation.hosts import layout
from faultline.installation.hosts.layout import choose_hosts
from faultline.installation.start import lay_hold, wait_out
from faultline.system.errors import ConfigError
from faultline.system.journal import read_journal
from faultline.system.settings import Settings, load_settings


def test_a_hold_lasts_until_its_instant_and_no_longer_than_has_sense(tmp_path: Path) -> None:
    hold = tmp_path / "holds" / "kafka.json"
    assert wait_out(hold) < 60, "there is none"
    until = time.monotonic_ns() + 300_000_000
    lay_hold(hold, until)
    wait_out(hold)
    assert time.monotonic_ns() >= until
    assert wait_out(hold) < 60, "its instant is over"
    lay_hold(hold, time.monotonic_ns() + 10**13)
    assert 0.1 <= wait_out(hold, longest_s=0.1) < 60
    hold.write_text("{half a")
    assert wait_out(hold) < 60


def start(folder: Path, journal: Path) -> int:
    """Starts a service that ends at once; the pid of its start."""
    specification = {
        "service": "kafka",
        "command": [sys.executable, "-c", "import os; print(os.getpid())"],
        "hold": str(folder / "hold.json"),
        "journal": str(journal),
    }
    (folder / "kafka.json").write_text(json.dumps(specification))
    command = [sys.executable, "-P", "-m", "faultline.installation.start", "held", str(folder / "kafka.json")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0 and int(output) == process.pid, "supervisord watches the service itself"
    return process.pid


def test_the_service_takes_the_place_of_its_start_and_the_start_is_journalled(tmp_path: Path) -> None:
    pid = start(tmp_path, tmp_path / "services.jsonl")
    (line,) = read_journal(tmp_path / "services.jsonl")
    assert (line["event"], line["service"], line["pid"]) == ("started", "kafka", pid)
    start(tmp_path, Path("/dev/full"))  # there is no room to journal it


# ---- Hosts get a network that nobody has ----


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
