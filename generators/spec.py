"""What one generator has to send: the JSON file that `python -m generators --config` reads."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from generators.errors import InputError
from generators.pacing import Schedule


class GeneratorSpec(BaseModel):
    """The parameters of one generator. Equal specifications send equal records at equal offsets in time."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    bootstrap: str = Field(min_length=1, description="Kafka's bootstrap servers.")
    topic: str = Field(min_length=1, description="The input topic; it must exist.")
    partitions: int = Field(ge=1, description="Partitions of the topic; record k goes to k mod partitions.")
    rate: float | None = Field(
        gt=0, le=10_000_000, description="Records per second; null: as fast as possible (benchmark only)."
    )
    seconds: float | None = Field(None, gt=0, le=1e7, description="Length of the schedule; null when `rate` is null.")
    records: int | None = Field(None, ge=1, description="Records to send when `rate` is null.")
    source: Literal["text", "zipf", "constant"] = Field("text", description="Where the records come from.")
    corpus: str = Field("moby-dick", min_length=1, description="`moby-dick`, or a directory of .txt files.")
    skew: float = Field(1.0, ge=0, le=5, description="Zipf exponent; 0 is uniform.")
    vocabulary: int = Field(10_000, ge=1, le=10_000_000, description="Distinct words of the Zipf source.")
    words_per_line: int = Field(10, ge=1, le=1000, description="Words of one record.")
    payload_bytes: int = Field(100, ge=1, le=100_000, description="Size of the constant payload (benchmark only).")
    state_mb: float = Field(0.0, ge=0, le=100_000, description="Logical state to preload, in MB (10⁶ bytes).")
    primer_lines: int = Field(0, ge=0, le=1_000_000, description="Lines of the source sent before the gate.")
    state_touch: float = Field(0.01, ge=0, le=1, description="Share of records that touch the preloaded state.")
    seed: int = Field(1, ge=0, description="Seed of every random choice, together with the repetition.")
    repetition: int = Field(0, ge=0, description="Repetition of the configuration.")
    processes: int = Field(1, ge=1, le=64, description="Processes that share the schedule.")
    run: str = Field("", description="The run's token, for the logs.")

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.rate is None:
            if self.records is None or self.seconds is not None:
                raise ValueError("records: without a rate, give `records` and leave `seconds` empty")
        elif self.seconds is None or self.records is not None:
            raise ValueError("seconds: with a rate, give `seconds` and leave `records` empty")
        return self

    @property
    def schedule(self) -> Schedule | None:
        """The schedule, or None when records go out as fast as possible."""
        if self.rate is None or self.seconds is None:
            return None
        return Schedule.over(self.rate, self.seconds)

    @property
    def total(self) -> int:
        """Records to send after the gate, over all processes."""
        schedule = self.schedule
        return schedule.count if schedule else self.records or 0


def read_spec(path: Path) -> GeneratorSpec:
    """Reads and validates a specification. Raises InputError with one line that names file and key."""
    try:
        return GeneratorSpec.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        key = ".".join(map(str, problem["loc"]))
        raise InputError(f"{path}: {key + ': ' if key else ''}{problem['msg']}") from None
