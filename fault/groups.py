"""What the control group that this process lives in has used, by the kernel's own counters, of version 1 and 2."""

from __future__ import annotations

from pathlib import Path

_OWN, _ROOT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def group_usage(own: Path = _OWN, root: Path = _ROOT) -> dict[str, float | int | str | None]:
    """{"path", "cpu_s", "memory_bytes"}: seconds of a core and bytes of all processes of the group; None where nothing
    is counted.

    `own`: which groups it is in, as the kernel lists them; `root`: where the hierarchies are mounted.
    """
    lines = [line.split(":", 2) for line in _text(own).splitlines() if line.count(":") >= 2]
    cpu_s: float | None = None
    memory: int | None = None
    path: str | None = None
    for _, controllers, inside in lines:
        names = controllers.split(",")
        if "cpuacct" in names:
            path = inside
            counted = _first(root, (controllers, "cpuacct"), inside, "cpuacct.usage")
            cpu_s = None if counted is None else int(counted) / 1e9
        if "memory" in names:
            counted = _first(root, ("memory",), inside, "memory.usage_in_bytes")
            memory = None if counted is None else int(counted)
        if controllers == "" and cpu_s is None:
            path = path or inside
            used = dict(line.split() for line in _text(root / inside.strip("/") / "cpu.stat").splitlines())
            cpu_s = int(used["usage_usec"]) / 1e6 if "usage_usec" in used else None
            counted = _text(root / inside.strip("/") / "memory.current").strip()
            memory = int(counted) if counted.isdigit() else memory
    return {"path": path, "cpu_s": cpu_s, "memory_bytes": memory}


def _first(root: Path, mounts: tuple[str, ...], inside: str, name: str) -> str | None:
    """The content of the first such file that there is."""
    found = (_text(root / mount / inside.strip("/") / name).strip() for mount in mounts)
    return next((text for text in found if text.isdigit()), None)


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
