"""The names by which hosts know each other and this machine."""

from __future__ import annotations

from faultline.system.settings import Settings

CONDUCTOR = "conductor"


def write_names(settings: Settings) -> None:
    """Writes what stands in place of `/etc/hosts` and `/etc/resolv.conf` on all hosts. There is no name server: asking
    one that no host reaches takes seconds."""
    placement = settings.placement
    lines = ["127.0.0.1 localhost", f"{placement.conductor} {CONDUCTOR}"]
    lines += [f"{host.address} {host.name}" for host in placement.hosts]
    (settings.hosts / "hosts").write_text("".join(f"{line}\n" for line in lines))
    (settings.hosts / "resolv.conf").write_text("options timeout:1 attempts:1\n")
