"""Environment of an attempt, and the base class of all parts of a record."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class Part(BaseModel):
    """Immutable part of a record; written with every key, read even if an older record lacks some."""

    # Defaults stand for keys that older records lack; a written record has every key.
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
    """Lead of another host's clock over this host's, and round-trip time of the query, in seconds."""

    offset_s: float
    round_trip_s: float


class HostPart(Part):
    """Another host of the experiment. `same_machine`: it shares this machine's cores, as a network namespace does.

    `clock_ahead_s`: lead of its clock over this machine's, mean of start and end; `clock_uncertain_ms`: the drift in
    between plus half a round trip. In the measured window: `cores_used` by the experiment's processes on it, and
    `cores_counted` by the whole host without its recorder, from the kernel's counter; null if there is none.
    """

    same_machine: bool
    clock_ahead_s: float | None
    clock_uncertain_ms: float | None
    cores_used: float | None
    cores_counted: float | None


class LatencyClock(Part):
    """Clock of the broker's `host`, which stamps outputs: it ends latencies if there are several hosts or a target.

    `ahead_ms`: its lead over the generator's clock in whole ms, subtracted from its instants. `uncertain_ms`: its drift
    from start to end plus half a round trip; null if it was not read at the end. `uncertain`: whether that exceeds 1 ms
    or is unknown, which limits the accuracy of latencies.
    """

    host: str
    ahead_ms: int
    uncertain_ms: float | None
    uncertain: bool


class CgroupLimits(Part):
    """Limits of a process's control group: cores, and memory in MB (2^20 bytes); null without a limit."""

    cpus: float | None
    memory_mb: float | None


class Jvm(Part):
    """JVM options of a role, with placeholders in capitals for paths, and its garbage collector.

    The collector is null if Java chooses it and no log names it.
    """

    options: list[str]
    heap_mb: int | None
    collector: str | None = None


class BuildPart(Part):
    """Software under test: the named revision, its commit, and settings that differ from the defaults."""

    revision: str | None
    commit: str | None
    settings: dict[str, str]


class RecordEnvironment(Part):
    """Environment of the attempt. `clock_offsets`: by remote host; null without one.

    `cgroup`: limits of the process that prepared the attempt. `jvm`: by role. `hashes`: SHA-256 of lock files and
    present jars, by name. `build_spec`: null for the installed build. `hosts`: the other hosts, by name;
    `latency_clock`: null with a single host. Fields with a default are null if they were not recorded.
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
