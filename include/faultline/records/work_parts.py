"""Parts of a record about input and work: batches, checkpoints, CPU, garbage collections, keys and stages."""

from __future__ import annotations

from faultline.records.environment import Part


class WorkPart(Part):
    """Number and total time (s) of batches and tasks in the measured window, and µs of batches per committed record."""

    batches: int | None
    tasks: int | None
    batch_s: float | None
    task_s: float | None
    batch_us_per_record: float | None = None


class MedianAndMax(Part):
    """Median and largest value of a figure."""

    p50: float
    max: float


class CheckpointsPart(Part):
    """Checkpoints completed in the measured window before the first fault, as reported by an engine with barriers.

    Largest value of any subtask: `start_delay_ms`, `alignment_ms`. Sums over tasks: `written_bytes`, uploaded, and
    `persisted_bytes`, records in flight. All but the `count` are null without checkpoints.
    """

    count: int
    duration_ms: MedianAndMax | None = None
    start_delay_ms: MedianAndMax | None = None
    alignment_ms: MedianAndMax | None = None
    written_bytes: MedianAndMax | None = None
    persisted_bytes: MedianAndMax | None = None


class CpuPerMillion(Part):
    """CPU seconds of the engine per million committed records in the measured window, with and without its driver."""

    engine: float | None
    workers: float | None


class CpuByPhase(Part):
    """CPU seconds of the engine per million records due, before, during and after recoveries."""

    before: float | None
    during: float | None
    after: float | None


class GarbagePart(Part):
    """Garbage-collection pauses in the measured window from the JVM logs, by role and in total.

    The part is null without these logs; `gc_s` is then the total that the tasks report.
    """

    driver_s: float | None
    executors_s: float | None
    pauses: int | None
    longest_ms: float | None


class DataPart(Part):
    """Replayed user data: records, passes, and shift of its times per pass in ms (null without times)."""

    records: int
    cycles: float
    cycle_ms: int | None


class KeySkewPart(Part):
    """Skew of the keys: Zipf exponents, share of the hottest key, and number of distinct keys.

    Exponents: requested, and measured with its 95 % interval (`low`, `high`).
    """

    requested: float | None
    measured: float | None
    low: float | None
    high: float | None
    hottest_share: float | None
    distinct: int | None


class LateRecordsPart(Part):
    """Records that were sent too late to count, and rows that the engine reports as dropped."""

    sent: int | None
    dropped_rows: int | None


class StagesPart(Part):
    """Totals over the stages of a topology after T0.

    `signals`: back-pressure signals. `failed`, `set_aside`: tuples. `replacements`: replaced stages, with `gap_s`, the
    longest time from the last commit to the next planned batch, and `batch_s`, their longest batch. `most_queued`:
    tuples in the longest queue, without the running batch. `unstored`: keys whose stored count differs from the last
    acknowledged one; null without `persist`.
    """

    signals: int
    failed: int
    set_aside: int
    replacements: int
    gap_s: float | None
    batch_s: float | None
    most_queued: int | None
    unstored: int | None


class BackgroundCpuPart(Part):
    """Cores of other processes of the machine, and cores taken by the hypervisor (`steal`).

    Parts of `processes`: `services`, Faultline's own that run the experiments, and `recorder`; both null in records
    without this distinction.
    """

    processes: float | None
    steal: float | None
    services: float | None = None
    recorder: float | None = None


class WaitedPart(Part):
    """Cores that the measured processes lost while they were ready to run.

    `others`: to other processes. `stolen`: to the hypervisor. `worst_5s`: sum of both over the worst 5 s.
    """

    others: float | None
    stolen: float | None
    worst_5s: float | None
