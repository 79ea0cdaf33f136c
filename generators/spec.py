"""What one generator has to send: the JSON file that `python -m generators --config` reads."""

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
    """The parameters of one generator. Equal specifications send equal records at equal offsets in time."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    bootstrap: str = Field(min_length=1, description="Kafka's bootstrap servers.")
    topic: str = Field(min_length=1, description="The input topic; it must exist.")
    partitions: int = Field(ge=1, description="Partitions of the topic; record k goes to k mod partitions.")
    rate: float | None = Field(
        gt=0, le=MAX_RATE, description="Records per second; null: as fast as possible (benchmark only)."
    )
    rate_curve: dict[str, Any] | None = Field(None, description="How the rate moves (see curve.py); null: it stays.")
    seconds: float | None = Field(None, gt=0, le=1e7, description="Length of the schedule; null when `rate` is null.")
    records: int | None = Field(None, ge=1, description="Records to send when `rate` is null.")
    source: Literal["text", "zipf", "constant", "ids", "stock", "nexmark", "data"] = Field(
        "text", description="Where the records come from."
    )
    corpus: str = Field("moby-dick", min_length=1, description="`moby-dick`, or a directory of .txt files.")
    skew: float = Field(
        1.0,
        ge=0,
        le=MAX_SKEW,
        description="Zipf exponent of the words or of the stocks; 0 is uniform, the default there.",
    )
    skew_curve: dict[str, Any] | None = Field(None, description="How `skew` moves (see curve.py); null: it stays.")
    vocabulary: int = Field(10_000, ge=1, le=10_000_000, description="Distinct words of the Zipf source.")
    words_per_line: int = Field(10, ge=1, le=1000, description="Words of one record.")
    payload_bytes: int = Field(100, ge=1, le=100_000, description="Size of the constant payload (benchmark only).")
    iterations: int = Field(1000, ge=1, le=10_000_000, description="What the source `ids` asks for of each record.")
    streams: tuple[Literal["STOCK", "TRANSACTION", "POSITION"], ...] = Field(
        ("TRANSACTION",), min_length=1, description="The streams of the source `stock`; STOCK beside others is a fifth."
    )
    prices: str = Field(
        "five-companies",
        min_length=1,
        description="`five-companies`, or a CSV file (szcode,date,close).",
    )
    stocks: int = Field(100, ge=1, le=10_000, description="Listed stocks.")
    users: int = Field(1000, ge=1, le=10_000_000, description="Users who trade and hold stocks.")
    watermark_s: float = Field(5.0, ge=0, le=3600, description="Disorder is at most half of it.")
    disorder: float = Field(0.1, ge=0, le=1, description="Share of stock records out of order.")
    late: float = Field(0.01, ge=0, le=1, description="Share of stock records that are an hour too old.")
    data: str | None = Field(
        None, description="A file or folder to replay: JSON lines, CSV, Parquet, text, a recording."
    )
    data_key: str | None = Field(None, description="The column that holds a record's key.")
    data_time: str | None = Field(None, description="The column that holds a record's time.")
    data_time_unit: Unit | None = Field(None, description="Of times that are numbers; else by their magnitude.")
    data_pace: Literal["rate", "recorded"] = Field("rate", description="At the rate, or when the records were made.")
    data_speed: float = Field(1.0, gt=0, le=1e6, description="Recorded times pass so much faster.")
    rules: dict[str, Any] | None = Field(None, description="What shapes the events of the source `nexmark`.")
    numbered: bool = Field(False, description="Records carry their number in the schedule as the header `faultline`.")
    closing: bool = Field(False, description="After the schedule, records that close what is open.")
    closing_ahead_s: float | None = Field(
        None, gt=0, le=3500, description="How far ahead they lie by their timestamps; those of `nexmark` say it inside."
    )
    state_mb: float = Field(0.0, ge=0, le=100_000, description="Logical state to preload, in MB (10⁶ bytes).")
    primer_lines: int = Field(0, ge=0, le=1_000_000, description="Lines of the source sent before the gate.")
    state_touch: float = Field(0.01, ge=0, le=1, description="Share of records that touch the preloaded state.")
    seed: int = Field(1, ge=0, description="Seed of every random choice, together with the repetition.")
    repetition: int = Field(0, ge=0, description="Repetition of the configuration.")
    processes: int = Field(1, ge=1, le=64, description="Processes that share the schedule.")
    run: str = Field("", description="The run's token, for the logs.")

    @model_validator(mode="after")
    def _check_length(self) -> Self:
        if self.rate is None:
            if self.records is None or self.seconds is not None:
                raise ValueError("records: without a rate, give `records` and leave `seconds` empty")
        elif self.seconds is None or self.records is not None:
            raise ValueError("seconds: with a rate, give `seconds` and leave `records` empty")
        return self

    @model_validator(mode="before")
    @classmethod
    def _default_stock_skew(cls, data: Any) -> Any:
        """Stocks are all traded alike unless someone asks for skew."""
        if isinstance(data, Mapping) and data.get("source") == "stock":
            return {"skew": 0.0, **data}
        return data

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if (self.source == "data") != (self.data is not None):
            raise ValueError("data: the source data needs a file, and no other has one")
        if self.data_pace == "recorded" and (self.source != "data" or self.seconds is None or self.rate_curve):
            raise ValueError("data_pace: only data has recorded times, and no curve besides; use rate")
        if (self.source == "nexmark") != (self.rules is not None):
            raise ValueError("rules: the source nexmark needs them, and no other has them")
        if self.closing and (self.source == "nexmark") != (self.closing_ahead_s is None):
            raise ValueError("closing_ahead_s: what closes windows lies ahead, of nexmark by what it holds; give one")
        if self.source in ("ids", "stock", "nexmark", "data") and self.state_mb > 0:
            raise ValueError(f"state_mb: the records of {self.source} carry no filler words; use 0")
        if self.source == "stock":
            if self.rate is None:
                raise ValueError("rate: the source stock takes its event times from the schedule; give a rate")
            if len(set(self.streams)) < len(self.streams):
                raise ValueError("streams: a stream is named twice; name each once")
            if self.disorder + self.late > 1:
                raise ValueError("disorder: no record is both late and out of order; let disorder + late be at most 1")
        return self

    @model_validator(mode="after")
    def _check_curves(self) -> Self:
        if self.rate_curve is not None and self.rate is None:
            raise ValueError("rate_curve: it moves around a rate; give `rate` and `seconds`")
        if self.skew_curve is not None and (self.rate is None or self.source not in ("zipf", "stock")):
            raise ValueError("skew_curve: only the sources zipf and stock have skew, on a schedule; leave it empty")
        schedule = self.schedule  # parses the curve of the rate
        if schedule is not None and schedule.count == 0:
            raise ValueError(f"rate_curve: no record is due in {self.seconds:g} s; raise the curve or `seconds`")
        _ = self.skew_exponents
        return self

    @property
    def skew_exponents(self) -> Curve | None:
        """How the exponent moves, or None when it stays."""
        return _curve("skew_curve", self.skew_curve, self.skew, MAX_SKEW)

    def load_data(self) -> Data:
        """The data that is replayed. Raises InputError naming file and line of what is broken in it."""
        data = read_data(self.data or "", self.data_key, self.data_time, self.data_time_unit, copies=self.processes)
        if self.data_pace == "recorded":
            require_ordered(data, self.data or "")
        return data

    @cached_property
    def _recorded_schedule(self) -> RecordedSchedule | None:
        """When records of data are due that come as they were recorded; made once, since it is asked for again."""
        if self.data_pace != "recorded" or self.seconds is None:
            return None
        data = self.load_data()
        return RecordedSchedule.for_duration(data.times_ms, data.round_ms, self.data_speed, self.seconds)

    @property
    def schedule(self) -> DueTimes | None:
        """The schedule, or None when records go out as fast as possible."""
        return self._recorded_schedule or self.rate_schedule

    @property
    def rate_schedule(self) -> SendSchedule | None:
        """The schedule that follows from the rate and its curve."""
        if self.rate is None or self.seconds is None:
            return None
        return SendSchedule.for_duration(
            self.rate, self.seconds, _curve("rate_curve", self.rate_curve, self.rate, MAX_RATE)
        )

    @property
    def total(self) -> int:
        """Records to send after the gate, over all processes."""
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
    """Reads and validates a specification. Raises InputError with one line that names file and key."""
    try:
        return GeneratorSpec.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        key = ".".join(map(str, problem["loc"]))
        raise InputError(f"{path}: {key + ': ' if key else ''}{problem['msg'].removeprefix('Value error, ')}") from None
