"""Where and with what an attempt ran; and what every part of a record is."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class Part(BaseModel):
    """Frozen, complete when it is written, lenient towards older records when it is read."""

    # Keys that older records lack have defaults for reading; a record that is written has every key.
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        from_attributes=True,
        json_schema_serialization_defaults_required=True,
    )

    @classmethod
    def empty(cls) -> Any:
        """Return the part with every key null."""
        return cls(**dict.fromkeys(cls.model_fields))


class ClockOffsetPart(Part):
    """How far another host's clock was ahead of this one's, and how long the asking took; seconds."""

    offset_s: float
    round_trip_s: float


class HostPart(Part):
    """Another host of the experiment. `same_machine`: it shares this machine's processors, as a network namespace does.

    `clock_ahead_s`: by how much its clock was ahead of this one's, mean of start and end; `clock_uncertain_ms`: its
    drift between the two, and half a round trip. `cores_used`: by its processes that play a role, in the measured
    window; `cores_counted`: by the kernel's own counter of the whole host but its recording, null where it has none.
    """

    same_machine: bool
    clock_ahead_s: float | None
    clock_uncertain_ms: float | None
    cores_used: float | None
    cores_counted: float | None


class LatencyClock(Part):
    """By whose clock latencies end where hosts are several, or a target's: that of the broker's `host`, which stamps
    each output.

    `ahead_ms`: by how much it was ahead of the generator's, in whole ms, which all of its instants were moved by.
    `uncertain_ms`: its drift from start to end, and half a round trip; null where it was not asked at the end, or
    never. `uncertain`: whether that is more than 1 ms, or not known: latencies are no more exact.
    """

    host: str
    ahead_ms: int
    uncertain_ms: float | None
    uncertain: bool


class CgroupLimits(Part):
    """What its control group allows a process: cores, and memory in MB (2^20 bytes); null where it sets no limit."""

    cpus: float | None
    memory_mb: float | None


class Jvm(Part):
    """How the JVMs of a role are started, with the names of places in capitals in place of paths, and what collects
    their garbage; null where that is left to Java and no log named it."""

    options: list[str]
    heap_mb: int | None
    collector: str | None = None


class BuildPart(Part):
    """What was under test: the revision, as it was named, its commit, and settings beside the usual ones."""

    revision: str | None
    commit: str | None
    settings: dict[str, str]


class RecordEnvironment(Part):
    """Where and with what the attempt ran. `clock_offsets`: by remote host; null when there was none.

    `cgroup`: of the process that prepared it. `jvm`: by role. `hashes`: SHA-256 of locks and of the jars that are
    there, by name. `build_spec`: null for the installed build. `hosts`: those beside this one, by name;
    `latency_clock`: null where all ran on one. What has a default is null where it was not noted.
    """

    host: str | None
    cores: int | None
    memory_mb: float | None
    oversubscribed: bool | None
    versions: dict[str, Any] | None
    git_commit: str | None
    spark_conf: dict[str, Any] | None
    kafka_conf: dict[str, Any] | None
    clock_offsets: dict[str, ClockOffsetPart] | None = None
    processor: str | None = None
    kernel: str | None = None
    clock_source: str | None = None
    cgroup: CgroupLimits | None = None
    jvm: dict[str, Jvm] | None = None
    hashes: dict[str, str] | None = None
    build_spec: BuildPart | None = None
    hosts: dict[str, HostPart] | None = None
    latency_clock: LatencyClock | None = None
