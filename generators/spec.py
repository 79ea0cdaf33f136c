"""Specification of one generator: the JSON file for `python -m generators --config`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from generators.curve import Curve, parse_curve
from generators.data_files import Data, read_data, require_ordered
from generators.data_rows import Unit
from generators.pacing import DueTimes, RecordedSchedule, SendSchedule
from generators.send_progress import InputError

MAX_RATE = 10_000_000
MAX_SKEW = 5


class GeneratorSpec(BaseModel):
    """Parameters of one generator. Equal specifications send equal records at equal times after T0."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    bootstrap: str = Field(min_length=1, description="Kafka bootstrap servers.")
    topic: str = Field(min_length=1, description="Input topic; must exist.")
    partitions: int = Field(ge=1, description="Partitions; record k goes to partition k mod partitions.")
    rate: float | None = Field(
        gt=0, le=MAX_RATE, description="Records per second; null: as fast as possible (benchmark only)."
    )
    rate_curve: dict[str, Any] | None = Field(None, description="Rate over time (see curve.py); null: constant.")
    seconds: float | None = Field(None, gt=0, le=1e7, description="Length of the schedule; null when `rate` is null.")
    records: int | None = Field(None, ge=1, description="Records to send when `rate` is null.")
    source: Literal["text", "zipf", "constant", "ids", "stock", "nexmark", "data"] = Field(
        "text", description="Source of the records."
    )
    corpus: str = Field("moby-dick", min_length=1, description="`moby-dick`, or a directory of .txt files.")
    skew: float = Field(
        1.0,
        ge=0,
        le=MAX_SKEW,
        description="Zipf exponent of words or stocks; 0 is uniform, the default for stocks.",
    )
    skew_curve: dict[str, Any] | None = Field(None, description="`skew` over time (see curve.py); null: constant.")
    vocabulary: int = Field(10_000, ge=1, le=10_000_000, description="Distinct words of the Zipf source.")
    words_per_line: int = Field(10, ge=1, le=1000, description="Words of one record.")
    payload_bytes: int = Field(100, ge=1, le=100_000, description="Size of the constant payload (benchmark only).")
    iterations: int = Field(1000, ge=1, le=10_000_000, description="Iterations per record of the source `ids`.")
    streams: tuple[Literal["STOCK", "TRANSACTION", "POSITION"], ...] = Field(
        ("TRANSACTION",),
        min_length=1,
        description="Streams of the source `stock`; next to others, STOCK has a share of 20 %.",
    )
    prices: str = Field(
        "five-companies",
        min_length=1,
        description="`five-companies`, or a CSV file (szcode,date,close).",
    )
    stocks: int = Field(100, ge=1, le=10_000, description="Listed stocks.")
    users: int = Field(1000, ge=1, le=10_000_000, description="Users who trade and hold stocks.")
    watermark_s: float = Field(5.0, ge=0, le=3600, description="Watermark delay; disorder is at most half of it.")
    disorder: float = Field(0.1, ge=0, le=1, description="Share of stock records out of order.")
    late: float = Field(0.01, ge=0, le=1, description="Share of stock records that are one hour late.")
    data: str | None = Field(
        None, description="File or folder to replay: JSON lines, CSV, Parquet, text or a recorded topic."
    )
    data_key: str | None = Field(None, description="Column with the key.")
    data_time: str | None = Field(None, description="Column with the time.")
    data_time_unit: Unit | None = Field(None, description="Unit of numeric times; null: from their magnitude.")
    data_pace: Literal["rate", "recorded"] = Field("rate", description="Send at the rate, or at the recorded times.")
    data_speed: float = Field(1.0, gt=0, le=1e6, description="Speed-up of recorded times.")
    rules: dict[str, Any] | None = Field(None, description="Parameters of the source `nexmark`.")
    numbered: bool = Field(False, description="Add the record number as header `faultline`.")
    closing: bool = Field(False, description="Send records after the schedule that close all windows.")
    closing_ahead_s: float | None = Field(
        None, gt=0, le=3500, description="Seconds by which their timestamps are ahead; not for `nexmark`."
    )
    state_mb: float = Field(0.0, ge=0, le=100_000, description="Logical state to preload, in MB (10⁶ bytes).")
    primer_lines: int = Field(0, ge=0, le=1_000_000, description="Records of the source sent before T0.")
    state_touch: float = Field(0.01, ge=0, le=1, description="Share of records that update the preloaded state.")
    seed: int = Field(1, ge=0, description="Seed of every random choice, together with the repetition.")
    repetition: int = Field(0, ge=0, description="Repetition of the configuration.")
    processes: int = Field(1, ge=1, le=64, description="Processes that share the schedule.")
    run: str = Field("", description="Token of the run, for logs.")

    @model_validator(mode="after")
    def _check_length(self) -> Self:
        if self.rate is None:
            if self.records is None or self.seconds is not None:
                raise ValueError("records: without a rate, expected `records` and no `seconds`")
        elif self.seconds is None or self.records is not None:
            raise ValueError("seconds: with a rate, expected `seconds` and no `records`")
        return self

    @model_validator(mode="before")
    @classmethod
    def _default_stock_skew(cls, data: Any) -> Any:
        """Use uniform stocks unless skew is given."""
        if isinstance(data, Mapping) and data.get("source") == "stock":
            return {"skew": 0.0, **data}
        return data

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if (self.source == "data") != (self.data is not None):
            raise ValueError("data: expected a file for the source data, and none for others")
        if self.data_pace == "recorded" and (self.source != "data" or self.seconds is None or self.rate_curve):
            raise ValueError("data_pace: got recorded; expected rate, except for data without a curve")
        if (self.source == "nexmark") != (self.rules is not None):
            raise ValueError("rules: expected for the source nexmark only")
        if self.closing and (self.source == "nexmark") != (self.closing_ahead_s is None):
            raise ValueError("closing_ahead_s: expected with closing, except for nexmark")
        if self.source in ("ids", "stock", "nexmark", "data") and self.state_mb > 0:
            raise ValueError(f"state_mb: got {self.state_mb:g}; expected 0 for the source {self.source}")
        if self.source == "stock":
            if self.rate is None:
                raise ValueError("rate: missing; the source stock needs a schedule")
            if len(set(self.streams)) < len(self.streams):
                raise ValueError("streams: got a stream twice; expected each once")
            if self.disorder + self.late > 1:
                raise ValueError("disorder: got disorder + late > 1; expected at most 1")
        return self

    @model_validator(mode="after")
    def _check_curves(self) -> Self:
        if self.rate_curve is not None and self.rate is None:
            raise ValueError("rate_curve: not allowed without rate; fix: set `rate` and `seconds`")
        if self.skew_curve is not None and (self.rate is None or self.source not in ("zipf", "stock")):
            raise ValueError("skew_curve: not allowed; expected the source zipf or stock with a rate")
        schedule = self.schedule  # also validates the rate curve
        if schedule is not None and schedule.count == 0:
            raise ValueError(f"rate_curve: got no record in {self.seconds:g} s; expected at least one")
        _ = self.skew_exponents
        return self

    @property
    def skew_exponents(self) -> Curve | None:
        """Course of the exponent, or None if it is constant."""
        return _curve("skew_curve", self.skew_curve, self.skew, MAX_SKEW)

    def load_data(self) -> Data:
        """Return the replayed data. Raises InputError naming file and line of an error."""
        data = read_data(self.data or "", self.data_key, self.data_time, self.data_time_unit, copies=self.processes)
        if self.data_pace == "recorded":
            require_ordered(data, self.data or "")
        return data

    @cached_property
    def _recorded_schedule(self) -> RecordedSchedule | None:
        """Recorded schedule of replayed data, or None; cached."""
        if self.data_pace != "recorded" or self.seconds is None:
            return None
        data = self.load_data()
        return RecordedSchedule.for_duration(data.times_ms, data.round_ms, self.data_speed, self.seconds)

    @property
    def schedule(self) -> DueTimes | None:
        """The schedule, or None if records are sent as fast as possible."""
        return self._recorded_schedule or self.rate_schedule

    @property
    def rate_schedule(self) -> SendSchedule | None:
        """The schedule from the rate and its curve."""
        if self.rate is None or self.seconds is None:
            return None
        return SendSchedule.for_duration(
            self.rate, self.seconds, _curve("rate_curve", self.rate_curve, self.rate, MAX_RATE)
        )

    @property
    def total(self) -> int:
        """Number of records after T0, over all processes."""
        schedule = self.schedule
        return schedule.count if schedule else self.records or 0


def _curve(key: str, mapping: dict[str, Any] | None, base: float, high: float) -> Curve | None:
    if mapping is None:
        return None
    try:
        return parse_curve(mapping, base=base, low=0, high=high)
    except InputError as error:
        raise ValueError(f"{key}.{error}") from None


def read_spec(path: Path) -> GeneratorSpec:
    """Read and validate a specification. Raises InputError, naming file and key."""
    try:
        return GeneratorSpec.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: read failed: {error.strerror}") from None
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        key = ".".join(map(str, problem["loc"]))
        raise InputError(f"{path}: {key + ': ' if key else ''}{problem['msg'].removeprefix('Value error, ')}") from None
