"""Script of the ground-truth engine: latency, outage, and lost or repeated records.

A script is part of the configuration (`truth`), so this module has few imports.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Protocol, get_args

from faultline.system.errors import ConfigError
from faultline.system.text import nearest_name

Style = Literal["batch", "record"]
STYLES: tuple[str, ...] = get_args(Style)

# Factors of spread_ms that are added to latency_ms in successive time bins. The fixed cycle gives recovery thresholds
# (bands) a width, but no trend. In this order the latencies, the differences of neighbours (spans of batches) and the
# larger of neighbours (p99 of seconds) have a median absolute deviation of at least one step, so no band is too narrow.
WOBBLE = (0, 1, -1, 2, -2)
# Additional latency of slow outputs, in spreads (multiples of spread_ms): far outside the latency band, whose upper
# bound is at most 1 + 3 · 1.48 = 5.45 spreads above latency_ms.
SLOW_SPREADS = 15
# Every n-th record is slow in the style `record`: enough to move the p99 of a second, too few to move its lag out of
# band (15 spreads / 20 < 1 spread). They must be emitted well within their second.
SLOW_EVERY = 20
SLOW_LONGEST_MS = 400.0
# Distance of the lag band's upper bound from latency_ms: the larger of a number of spreads and a share of latency_ms.
BAND_SPREADS = 5.5
BAND_SHARE = 0.05
# Shortest time from the planning of a bin to its outputs; records arrive within it.
SHORTEST_LATENCY_MS = 20.0
# Shortest spread in records, since the lag band must be wider than one record.
LEAST_SPREAD_RECORDS = 2
# Start-up time of a new process: interpreter, imports and connection.
START_S = 1.0
# Shortest time between a kill and the nearest commit of the script.
IDLE_S = 0.03
_LONGEST_S = 3600.0


@dataclass(frozen=True)
class Script:
    """Planted values of one run. Times that end in `_s` follow each other from t0, the delivery of the kill.

    Attributes:
        style: `batch` commits on a grid of `checkpoint_interval_s`; `record` emits each record by itself.
        latency_ms: Latency of an output after its batch was planned (`batch`) or its record was due (`record`).
        spread_ms: Step by which the latency varies between time bins.
        redeploy_s: t0 to the task launch; at least `restart_delay_s` + 1 s.
        load_s: Task launch to loaded state.
        replay_s: Loaded state to the commit of all input that the broker held at t0; in style `record` to its output,
            which the next commit of the grid covers.
        nothing_to_load: Emulate a stateless engine; `load_s` is 0.
        catchup_bins: Time bins after the replay with the consumer lag above its threshold.
        slow_bins: Further time bins with only the latency above its threshold.
        recovers: False keeps the consumer lag of the outage until the end.
        lost: Records never emitted, after the fault.
        overcounted: Records counted twice, after the fault.
        reemitted: Records emitted twice, after the fault.
        seed: Seed that selects the lost, overcounted and re-emitted records.
    """

    style: Style = "batch"
    latency_ms: float = 150.0
    spread_ms: float = 20.0
    redeploy_s: float = 3.5
    load_s: float = 1.0
    replay_s: float = 1.0
    nothing_to_load: bool = False
    catchup_bins: int = 2
    slow_bins: int = 1
    recovers: bool = True
    lost: int = 0
    overcounted: int = 0
    reemitted: int = 0
    seed: int = 1

    def __post_init__(self) -> None:
        """Raise ConfigError with one line that names the key."""
        for check in (self._check_types, self._check_ranges, self._check_together):
            check()

    @property
    def outage_s(self) -> float:
        """Seconds from t0 to the end of the replay."""
        return self.redeploy_s + self.load_s + self.replay_s

    @property
    def slow_ms(self) -> float:
        """Additional latency of a slow output."""
        return SLOW_SPREADS * self.spread_ms

    @property
    def mistreated(self) -> int:
        """Records that are lost, overcounted or re-emitted."""
        return self.lost + self.overcounted + self.reemitted

    def wobble_ms(self, number: int) -> float:
        """Return the deviation of the latency of bin `number`, counted from T0, from latency_ms."""
        return WOBBLE[number % len(WOBBLE)] * self.spread_ms

    def as_mapping(self) -> dict[str, Any]:
        """Return all fields with canonical types, so that equal scripts give equal mappings."""
        return asdict(self)

    def _check_types(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name == "style":
                if value not in STYLES:
                    near = nearest_name(str(value), STYLES)
                    raise _refused("style", f"got {value!r}; expected {near or ' or '.join(STYLES)}")
            elif isinstance(item.default, bool):
                if not isinstance(value, bool):
                    raise _refused(item.name, f"got {value!r}; expected true or false")
            elif isinstance(value, bool) or not isinstance(value, (int, float)):
                raise _refused(item.name, f"got {value!r}; expected a number")
            elif isinstance(item.default, int):
                if value != int(value) if math.isfinite(value) else True:
                    raise _refused(item.name, f"got {value!r}; expected a whole number of at least 0")
                object.__setattr__(self, item.name, int(value))
            else:
                if not math.isfinite(value):
                    raise _refused(item.name, f"got {value!r}; expected a finite number")
                object.__setattr__(self, item.name, float(value))

    def _check_ranges(self) -> None:
        _within("latency_ms", self.latency_ms, SHORTEST_LATENCY_MS, 60_000.0)
        _within("spread_ms", self.spread_ms, 1.0, 10_000.0)
        _within("redeploy_s", self.redeploy_s, 0.05, _LONGEST_S)
        _within("replay_s", self.replay_s, 0.05, _LONGEST_S)
        _within("load_s", self.load_s, 0.0, _LONGEST_S)
        _within("catchup_bins", self.catchup_bins, 0, 1000)
        _within("slow_bins", self.slow_bins, 0, 1000)
        for name in ("lost", "overcounted", "reemitted"):
            _within(name, getattr(self, name), 0, 10_000_000)
        _within("seed", self.seed, 0, 2**31 - 1)

    def _check_together(self) -> None:
        if self.latency_ms - 2 * self.spread_ms < SHORTEST_LATENCY_MS:
            raise _refused(
                "spread_ms",
                f"got {self.spread_ms:g}; expected at most {(self.latency_ms - SHORTEST_LATENCY_MS) / 2:g}, which "
                f"leaves a latency of {SHORTEST_LATENCY_MS:g} ms; fix: lower it, or raise latency_ms",
            )
        if self.nothing_to_load and self.load_s:
            raise _refused("load_s", f"got {self.load_s:g} with nothing_to_load; expected 0")
        if not self.nothing_to_load and self.load_s < 0.01:
            raise _refused(
                "load_s", f"got {self.load_s:g}; expected at least 0.01 (clock resolution), or nothing_to_load"
            )
        above_s = 2 * max(BAND_SPREADS * self.spread_ms, BAND_SHARE * self.latency_ms) / 1000
        if self.outage_s / (self.catchup_bins + 1) < self.latency_ms / 1000 + above_s:
            raise _refused(
                "catchup_bins",
                f"got {self.catchup_bins}; expected fewer: after an outage of {self.outage_s:g} s the lag returns into "
                "its band earlier; fix: lower it, or extend the outage",
            )
        if self.style == "record" and self.slow_bins and self.recovers and self.slow_ms > SLOW_LONGEST_MS:
            raise _refused(
                "slow_bins",
                f"got {self.slow_bins} with slow outputs {self.slow_ms:g} ms later; expected 0, or spread_ms of at "
                f"most {SLOW_LONGEST_MS / SLOW_SPREADS:.3g}",
            )
        if self.style == "record" and self.lost and self.recovers:
            raise _refused(
                "lost",
                f"got {self.lost} in style record, where lost records stay in the lag; expected 0, style batch, or "
                "recovers false",
            )


class Fitting(Protocol):
    """Configuration that a script must fit, such as faultline.experiment.config.Configuration."""

    @property
    def rate(self) -> float:
        """Input records per second."""

    @property
    def checkpoint_interval_s(self) -> float:
        """Seconds between commits."""

    @property
    def warmup_s(self) -> float:
        """Seconds after T0 that are not measured."""

    @property
    def duration_s(self) -> float:
        """Length of the measured window in seconds."""

    @property
    def fault_at_s(self) -> float | None:
        """Time of the kill in seconds after T0; None for a control run."""

    @property
    def restart_delay_s(self) -> float:
        """Seconds until the supervisor restarts a killed engine."""


def parse_script(values: Mapping[str, Any]) -> Script:
    """Return the script that `values` describe, with defaults for missing keys.

    Raises ConfigError with one line that names the key, such as `truth.latency_ms: got 1; expected …`.
    """
    known = [item.name for item in fields(Script)]
    for key in values:
        if key not in known:
            near = nearest_name(str(key), known, cutoff=0.5)
            hint = f"did you mean {near}?" if near else f"known: {', '.join(known)}"
            raise _refused(str(key), f"unknown key; {hint}")
    given = dict(values)
    if given.get("nothing_to_load") is True:
        given.setdefault("load_s", 0.0)
    return Script(**given)


def require_fit(script: Script, config: Fitting) -> None:
    """Raise ConfigError naming the key if the script does not fit the rest of the configuration."""
    bin_s = config.checkpoint_interval_s if script.style == "batch" else 1.0
    latest_s = (script.latency_ms + 2 * script.spread_ms) / 1000
    if latest_s >= 0.9 * bin_s:
        raise _refused(
            "latency_ms",
            f"got outputs up to {latest_s:g} s late; expected less than {0.9 * bin_s:g} s; "
            "fix: lower latency_ms or spread_ms"
            + (", or raise checkpoint_interval_s" if script.style == "batch" else ""),
        )
    if script.spread_ms * config.rate < LEAST_SPREAD_RECORDS * 1000:
        raise _refused(
            "spread_ms",
            f"got {script.spread_ms:g}; expected at least {LEAST_SPREAD_RECORDS * 1000 / config.rate:g} at "
            f"{config.rate:g} records/s; fix: raise it, or raise rate",
        )
    begin_s = config.warmup_s if config.fault_at_s is None else config.fault_at_s
    available = int(config.rate * (config.warmup_s + config.duration_s - begin_s))
    if script.mistreated > available:
        raise _refused(
            "lost", f"got {script.mistreated} lost, overcounted and reemitted records; expected at most {available}"
        )
    if config.fault_at_s is None:
        return
    least_s = config.restart_delay_s + START_S
    if script.redeploy_s < least_s:
        raise _refused(
            "redeploy_s",
            f"got {script.redeploy_s:g}; expected at least {least_s:g} (restart_delay_s and {START_S:g} s to start); "
            "fix: raise it, or lower restart_delay_s",
        )
    _require_idle(script, config, latest_s)


def _require_idle(script: Script, config: Fitting, latest_s: float) -> None:
    """Raise ConfigError for a kill near a commit, where it would be unknown which planted values apply."""
    assert config.fault_at_s is not None
    step_s = config.checkpoint_interval_s
    after_s, phase_s = (latest_s if script.style == "batch" else 0.0) + IDLE_S, config.fault_at_s % step_s
    if not after_s <= phase_s <= step_s - IDLE_S:
        early_s = config.fault_at_s - phase_s + after_s
        raise ConfigError(
            f"fault_at_s: got {config.fault_at_s:g}; expected a time between two commits of the script, in "
            f"[{early_s:g}, {early_s - after_s + step_s - IDLE_S:g}]"
            + ("; fix: move it, or lower truth.latency_ms" if after_s > step_s - 2 * IDLE_S else "")
        )


def _within(key: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise _refused(key, f"got {value:g}; expected a value in [{low:g}, {high:g}]")


def _refused(key: str, message: str) -> ConfigError:
    return ConfigError(f"truth.{key}: {message}")
