"""What a synthetic attempt plants: its course in words, and the instants that follow from it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np

from faultline.experiment.config import Configuration
from faultline.system.window import NS

T0_NS = 1_795_241_700_250_000_000


@dataclass(frozen=True)
class Scenario:
    """What is planted. Seconds; `catch` and `slow` count batches; `recovers` False means censored."""

    checkpoint_interval_s: float = 2.0
    rate: float = 200.0
    warmup_s: float = 6.0
    fault: bool = True
    phase: float = 0.1
    detection_s: float = 0.35
    redeploy_s: float = 3.2
    load_s: float = 0.4
    replay_s: float = 3.0
    catch: int = 2
    slow: int = 1
    recovers: bool = True
    nothing_to_load: bool = False
    lost: int = 0
    victims: tuple[str, ...] = ("executor",)
    action: str = "kill"
    commit_mode: str = "aligned"

    @property
    def configuration(self) -> Configuration:
        """The configuration that such a run would have had."""
        values: dict[str, Any] = {
            "rate": self.rate,
            "warmup_s": self.warmup_s,
            "duration_s": self.duration_s,
            "checkpoint_interval_s": self.checkpoint_interval_s,
            "fault": "none",
            "workload": "word_count_python" if "python_worker" in self.victims else "word_count",
            "commit_mode": self.commit_mode,
        }
        if self.fault:
            extra = {"duration_s": self.detection_s} if self.action in ("pause", "delay", "cut") else {}
            extra |= {"delay_ms": 100} if self.action == "delay" else {}
            first = self.warmup_s + (self.baseline + 2) * self.checkpoint_interval_s
            values["fault_plan"] = {
                "faults": [
                    {"victim": victim, "action": self.action, "at_s": first + number * self.apart_s, **extra}
                    for number, victim in enumerate(self.victims)
                ]
            }
        return Configuration.model_validate(values)

    @property
    def baseline(self) -> int:
        """Bins that a baseline needs."""
        return 4 if self.checkpoint_interval_s >= 5 else 10

    @property
    def lasts(self) -> bool:
        """Whether the act is undone; here nothing is noticed before that."""
        return self.action in ("pause", "delay", "cut")

    def kills(self, role: str, *roles: str) -> bool:
        """Whether a process of such a role is one of `roles` and dies."""
        return role in roles and not self.lasts

    def loads(self, role: str) -> bool:
        """Whether state is read again after the loss of such a process."""
        kept = self.nothing_to_load or self.lasts or self.commit_mode == "none"
        return not kept and role not in ("python_worker", "kafka")

    @property
    def apart_s(self) -> float:
        """From one fault to the next at the least: recovery, the hold of its end, and some more."""
        late = self.detection_s + self.redeploy_s + self.load_s + self.replay_s
        return late + (self.catch + self.slow + 13) * self.checkpoint_interval_s + 12.0

    @property
    def duration_s(self) -> float:
        """Long enough for baseline, planted recovery and hold, in whole intervals."""
        after = max(32.0, self.apart_s) * len(self.victims)
        return self.checkpoint_interval_s * float(
            np.ceil(((self.baseline + 2) * self.checkpoint_interval_s + after) / self.checkpoint_interval_s)
        )


class Row(NamedTuple):
    """A batch: planned, committed and extra delay of its outputs in ns; where a new lineage began, in ns."""

    planned: int
    committed: int
    extra: int
    lineage: int = 0
    begun: int | None = None


@dataclass(frozen=True)
class Hit:
    """One fault's planted instants in ns; `row`: index of the batch that it held back; `start`: what began anew."""

    number: int
    role: str
    row: int
    t0: int
    t2: int
    start: int
    t3: int
    t4: int
    t5: int
    t6: int
    t7: int


def ns(seconds: float) -> int:
    """Nanoseconds, in whole milliseconds."""
    return round(seconds * 1000) * 1_000_000


def grain(wall_ns: float) -> int:
    """To whole milliseconds, as logs and REST give them."""
    return int(wall_ns) // 1_000_000 * 1_000_000


def spark_time(wall_ns: int, zone: str = "GMT") -> str:
    """A UTC time with milliseconds, as Spark writes it."""
    moment = datetime.fromtimestamp(wall_ns // NS, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{wall_ns % NS // 1_000_000:03d}{zone}"
