"""What runs for each workload, and how its tuples are counted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Job:
    """What Spark runs for a workload.

    `program`: of spark_jobs/, without suffix; None: the workload is no Spark program. `tuples`: what the harvest takes
    for a tuple. `method`: how a tuple's batch and first output are found (docs/metrics.md). `streams`: of the stock
    exchange, which are its input. `stateful`: real-time mode has to be told to take it all the same.
    """

    program: str | None
    tuples: str
    method: str = "batch"
    streams: tuple[str, ...] = ()
    stateful: bool = True

    @property
    def event_time(self) -> bool:
        """Whether records have an event time, and can be late."""
        return bool(self.streams)


JOBS: dict[str, Job] = {
    "word_count": Job("word_count", "words"),
    "word_count_python": Job("word_count", "words"),
    "pi": Job("pi", "pi", method="id", stateful=False),
    "stock_group_by": Job("stock_group_by", "group", streams=("TRANSACTION",)),
    "stock_join": Job("stock_join", "join", streams=("STOCK", "POSITION")),
    "nexmark": Job("nexmark_query", "nexmark"),
    "topology": Job("topology", "ranked_words", method="rank"),
    "known_truth": Job(None, "id"),
}
