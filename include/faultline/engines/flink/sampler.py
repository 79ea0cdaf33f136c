"""Samples of a running job: the offsets of each checkpoint, before Flink removes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from fault.process_sampler import RoleRule
from faultline.engines.flink.checkpoints import completed_in, offsets_or_none
from faultline.engines.flink.cluster import JOB_MANAGER_MAIN, TASK_MANAGER_MAIN
from faultline.system.journal import Line
from faultline.system.process_tags import run_option

CHECKPOINT = "checkpoint"


class CheckpointSampler:
    """Sampler of the checkpoints in `folder`; `topic`: the input."""

    child_roles: Mapping[str, str] = MappingProxyType({})

    def __init__(self, attempt: str, folder: Path, topic: str) -> None:
        mark = run_option(attempt)
        self.rules: Sequence[RoleRule] = (
            RoleRule("driver", JOB_MANAGER_MAIN, mark),
            RoleRule("executors", TASK_MANAGER_MAIN, mark),
        )
        self._folder, self._topic = folder, topic
        self._known: set[int] = set()

    def sample(self) -> Iterable[Line]:
        for one in completed_in(self._folder):
            offsets = None if one.number in self._known else offsets_or_none(one, self._topic)
            if offsets is not None:
                self._known.add(one.number)
                yield checkpoint_line(one.number, one.completed_ns, offsets)


def checkpoint_line(number: int, completed_ns: int, offsets: Mapping[str, int]) -> Line:
    """Return the journal line of a checkpoint; `offsets`: next offset by partition."""
    return {"kind": CHECKPOINT, "number": number, "completed_ns": completed_ns, "offsets": dict(offsets)}
