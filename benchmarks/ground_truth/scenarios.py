"""Scenarios that check the measuring chain with a real Kafka broker.

Each kill falls between two commits, and each replay ends away from the next instant of the grid, so that a few
milliseconds of jitter move no planted value to another bin (verified by a test).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from faultline.engines.ground_truth.scripted_run import RunSpec
from faultline.experiment.config import Configuration, parse_configuration
from faultline.experiment.workloads.known_truth_script import Script, parse_script

_BATCH: Mapping[str, Any] = {
    "rate": 100,
    "warmup_s": 5,
    "duration_s": 38,
    "checkpoint_interval_s": 0.5,
    "state_mb": 0,
    # The script sets the time of the fault, so the warm-up must not be extended.
    "warmup_max_s": 0,
    "fault": "driver",
    "fault_at_s": 12.85,
}
_RECORD: Mapping[str, Any] = {**_BATCH, "duration_s": 41, "checkpoint_interval_s": 1, "fault_at_s": 15.37}
# Later kills come after the engine has recovered.
_THREE: Mapping[str, Any] = {"injections": 3, "duration_s": 125}
_CONTROL: Mapping[str, Any] = {"fault": "none", "fault_at_s": None, "duration_s": 15}


@dataclass(frozen=True)
class Scenario:
    """Name, script, and parameters that differ from the default configuration of its style."""

    name: str
    truth: Mapping[str, Any]
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def configuration(self) -> Configuration:
        """Complete configuration of the run."""
        return parse_configuration({"workload": "known_truth", **self._values, "truth": dict(self.truth)})

    @property
    def script(self) -> Script:
        """Planted script."""
        return parse_script(self.truth)

    @property
    def run(self) -> RunSpec:
        """Run data for the timeline."""
        config = self.configuration
        return RunSpec.from_mapping({**config.model_dump(), "schedule_s": config.longest_s})

    def parameters(self) -> list[str]:
        """Return the arguments of `./faultline run known_truth`."""
        given = [f"{key}={'' if value is None else value}" for key, value in self._values.items()]
        return [*given, f"truth={json.dumps(dict(self.truth))}"]

    @property
    def _values(self) -> dict[str, Any]:
        usual = _RECORD if self.truth.get("style") == "record" else _BATCH
        return {**usual, **self.more}


SCENARIOS: tuple[Scenario, ...] = (
    Scenario("batch_plain", {}),
    Scenario("record_plain", {"style": "record", "replay_s": 0.8}),
    Scenario(
        "batch_everything",
        {"catchup_bins": 3, "slow_bins": 2, "lost": 7, "overcounted": 11, "reemitted": 13, "seed": 5},
        {"rate": 200, "partitions": 3},
    ),
    Scenario("batch_control", {"seed": 2}, _CONTROL),
    Scenario(
        "batch_short_reload",
        {"redeploy_s": 2.2, "load_s": 0.1, "replay_s": 1.0, "catchup_bins": 1},
        {"restart_delay_s": 1},
    ),
    Scenario("batch_long_reload", {"load_s": 6.0}),
    Scenario("batch_long_replay", {"replay_s": 5.0}),
    Scenario(
        "batch_late_redeploy", {"redeploy_s": 6.5, "load_s": 0.5, "catchup_bins": 0, "spread_ms": 40.0}, {"rate": 50}
    ),
    Scenario("batch_nothing_to_load", {"nothing_to_load": True, "replay_s": 1.5}),
    Scenario("batch_long_catchup", {"catchup_bins": 6, "slow_bins": 0}),
    Scenario("batch_slow_tail", {"catchup_bins": 0, "slow_bins": 6}),
    Scenario("batch_never_recovers", {"recovers": False}),
    Scenario("batch_high_latency", {"latency_ms": 300.0, "replay_s": 0.8}, {"fault_at_s": 12.92}),
    Scenario("batch_loss", {"lost": 25, "seed": 3}),
    Scenario("batch_overcount_and_reemission", {"overcounted": 25, "reemitted": 40, "seed": 4}),
    Scenario("record_nothing_to_load", {"style": "record", "nothing_to_load": True, "replay_s": 1.5}),
    Scenario(
        "record_long_recovery", {"style": "record", "load_s": 3.0, "replay_s": 1.8, "catchup_bins": 4, "slow_bins": 3}
    ),
    Scenario("record_never_recovers", {"style": "record", "recovers": False, "lost": 20, "replay_s": 0.8}),
    Scenario(
        "record_low_latency_miscounting",
        {
            "style": "record",
            "latency_ms": 60.0,
            "spread_ms": 15.0,
            "catchup_bins": 0,
            "replay_s": 0.8,
            "overcounted": 30,
            "reemitted": 30,
            "seed": 6,
        },
        {"rate": 200},
    ),
    Scenario("record_control_miscounting", {"style": "record", "overcounted": 9, "reemitted": 8, "seed": 7}, _CONTROL),
    Scenario("batch_three_kills", {"catchup_bins": 1}, _THREE),
    Scenario("batch_three_kills_miscounting", {"lost": 7, "overcounted": 11, "reemitted": 13, "seed": 8}, _THREE),
    Scenario("record_three_kills", {"style": "record", "replay_s": 0.8}, _THREE),
)
# Quick selection: both styles, everything at once, a control, and several kills.
QUICK = (*SCENARIOS[:4], SCENARIOS[-3])
