"""What a supervised program is, whichever service it is part of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Service:
    """One supervised program. `ready` says whether it answers; `environment` is added to the common one."""

    name: str
    command: list[str]
    ready: Callable[[], bool]
    environment: dict[str, str] = field(default_factory=dict)
    stop_signal: str = "TERM"
    # A fault may hold its restart back; see `faultline.installation.restart_hold`.
    victim: bool = False
    # Only runs the experiments, and gives way while one is measured; see `faultline.system.background`.
    background: bool = False
    # The lower, the later it is stopped; supervisor's own default.
    priority: int = 999
    # The host that it runs on, where that is not this machine; see `faultline.installation.hosts`.
    host: str | None = None
