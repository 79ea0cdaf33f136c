"""Settings of the experiment's topics that may be varied, and those that the measuring needs as they are.

Names and kinds of values by Kafka's own reference of topic configurations (4.x).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from faultline.system.text import suggest

_WHOLE = re.compile(r"-?\d+")
WHOLE, SWITCH, TEXT = "a whole number", "true or false", "a text"
KINDS: Mapping[str, str] = {
    "compression.gzip.level": WHOLE, "compression.lz4.level": WHOLE, "compression.type": TEXT,
    "compression.zstd.level": WHOLE, "file.delete.delay.ms": WHOLE, "flush.messages": WHOLE, "flush.ms": WHOLE,
    "index.interval.bytes": WHOLE, "max.message.bytes": WHOLE, "min.insync.replicas": WHOLE, "preallocate": SWITCH,
    "segment.bytes": WHOLE, "segment.index.bytes": WHOLE, "segment.jitter.ms": WHOLE, "segment.ms": WHOLE,
    "unclean.leader.election.enable": SWITCH,
}  # fmt: skip
_KEPT = "records stay until they are harvested"
# Why a setting is not to be varied.
OWNED: Mapping[str, str] = {
    "message.timestamp.type": "a record's time is the one at which it was meant to be sent",
    "message.timestamp.before.max.ms": "a generator that is late sends records with times that lie in the past",
    "message.timestamp.after.max.ms": "records are sent ahead of their times by a little",
    "retention.ms": _KEPT, "retention.bytes": _KEPT, "cleanup.policy": _KEPT, "delete.retention.ms": _KEPT,
    "max.compaction.lag.ms": _KEPT, "min.compaction.lag.ms": _KEPT, "min.cleanable.dirty.ratio": _KEPT,
    "local.retention.ms": _KEPT, "local.retention.bytes": _KEPT, "remote.storage.enable": _KEPT,
}  # fmt: skip


def check_topic_settings(settings: Mapping[str, str] | None, *, paced: bool, workload: str) -> None:
    """Raises ValueError for a setting that is owned, unknown or has a value of another kind, naming it."""
    if not settings:
        return
    if not paced:
        raise ValueError(f"topic_conf: {workload} makes its input without Kafka; leave it out")
    for name, value in settings.items():
        where = f"topic_conf.{name}"
        if name in OWNED:
            raise ValueError(f"{where}: stays as it is, because {OWNED[name]}; leave it out")
        if name not in KINDS:
            raise ValueError(f"{where}: no setting of a topic{suggest(name, KINDS)}")
        if not _fits(value, KINDS[name]):
            raise ValueError(f"{where}: {value!r} is not {KINDS[name]}; give one")


def _fits(value: str, kind: str) -> bool:
    if kind == SWITCH:
        return value in ("true", "false")
    return kind == TEXT or bool(_WHOLE.fullmatch(value))
