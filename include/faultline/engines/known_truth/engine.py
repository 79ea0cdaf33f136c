"""The engine with known truth, as the house sees it: what it can do, how far it is, and what it left."""

from __future__ import annotations

from pathlib import Path

from faultline.base.attempt import Attempt
from faultline.base.journal import JournalReader, Line, read_journal
from faultline.base.settings import Settings
from faultline.engines.base import Capabilities, Commit, Engine, Hit, Offsets, Progress, Seen, Traces
from faultline.engines.batches import write_batches
from faultline.engines.known_truth import traces as own
from faultline.engines.spark.traces import read_traces as read_from_spark
from faultline.engines.supervised import driver_exited


class TraceProgress:
    """By the journal of the engine, of which each call reads what is new; see `faultline.engines.base.Progress`."""

    def __init__(self, path: Path) -> None:
        self._reader = JournalReader(path)
        self._lines: list[Line] = []

    def committed(self) -> Offsets:
        commits = self._commits()
        return commits[-1].ends if commits else {}

    def covering(self, offsets: Offsets) -> int:
        return sum(commit.covers(offsets) for commit in self._commits())

    def last_commit_ns(self) -> int:
        commits = self._commits()
        return commits[-1].committed_ns if commits else 0

    def await_cycle(self, cycle: str, not_before_ns: int, until_mono_ns: int) -> int | None:
        """None: no fault may be aimed at a cycle of it, and the configuration refuses one that is."""
        return None

    def _commits(self) -> list[Commit]:
        self._lines += self._reader.poll()
        return own.commits_of(self._lines)


class KnownTruth:
    """See `faultline.engines.base.Engine`.

    Attempts of before it had traces of its own hold forged files of Spark, and are read as Spark's.
    """

    name = "known_truth"
    only_for = frozenset({"known_truth"})
    roles = frozenset({"driver"})
    capabilities = Capabilities(
        commit_modes=frozenset({"aligned"}), cycles=frozenset(), granularity=frozenset({"batch", "record"})
    )

    def progress(self, attempt: Attempt) -> Progress:
        return TraceProgress(attempt.folder / own.FILE)

    def collect(self, attempt: Attempt, settings: Settings, *, method: str) -> None:
        commits = own.commits_of(read_journal(attempt.folder / own.FILE))
        write_batches(attempt.folder, commits, method=method, reached=commits[-1].ends if commits else {})

    def traces(self, folder: Path) -> Traces:
        return own.read_traces(folder) if (folder / own.FILE).exists() else read_from_spark(folder)

    def detect(self, hit: Hit, traces: Traces) -> Seen | None:
        return driver_exited(hit, traces)

    def without_effect(self, hit: Hit, traces: Traces) -> str | None:
        return None


ENGINE: Engine = KnownTruth()
