"""How unequal the keys of a run were, estimated from the counts in its input topic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.dataset as ds

from faultline.experiment.config import Configuration
from faultline.system.errors import InfrastructureError
from generators.state import WORD_CHARACTERS
from generators.zipf import estimate_exponent, words_of

# Beyond this many words their ranks are not looked up: the table would take longer than the harvest.
LARGEST_VOCABULARY = 1_000_000
# Processors differ in the last digits of a logarithm, and a record must not; no run tells an exponent more exactly.
DECIMALS = 6


@dataclass(frozen=True)
class Keys:
    """Zipf exponent asked for and estimated with its 95 % interval; the share of the hottest key; distinct keys."""

    requested: float | None
    measured: float | None
    low: float | None
    high: float | None
    hottest_share: float | None
    distinct: int | None


def keys_of(counts_path: Path, config: Configuration) -> Keys | None:
    """Reads `drawn` of counts.parquet; None for workloads whose keys are ids or windows.

    Ranks are those of the generator's vocabulary; a real text has none, so its words are ranked by their counts.
    Raises InfrastructureError when the table cannot be read.
    """
    if not config.kind.can("words"):
        return None
    counts = dict(_counts(counts_path))
    if not counts:
        return None
    total, hottest = sum(counts.values()), max(counts.values())
    ranked = _by_rank(counts, config)
    measured, low, high = (None, None, None) if ranked is None else _estimate(ranked)
    requested = config.skew if config.skew_curve is None else None
    return Keys(requested, measured, low, high, hottest / total, len(counts))


def _by_rank(counts: dict[str, int], config: Configuration) -> npt.NDArray[np.int64] | None:
    """Counts in the order of the ranks, 0 for words that never came; None when the exponent moved or has no meaning."""
    if config.skew_curve is not None or len(counts) < 2:
        return None
    if config.skew is None:
        return np.array(sorted(counts.values(), reverse=True), dtype=np.int64)
    if config.vocabulary > LARGEST_VOCABULARY:
        return None
    letters = words_of(np.arange(config.vocabulary, dtype=np.int64))
    width = letters.shape[1]
    block = letters.tobytes().decode("ascii")
    words = (block[start : start + width] for start in range(0, len(block), width))
    return np.array([counts.get(word, 0) for word in words], dtype=np.int64)


def _estimate(ranked: npt.NDArray[np.int64]) -> tuple[float | None, float | None, float | None]:
    """Estimate and interval; nothing when all draws are of one word."""
    try:
        estimate, low, high = estimate_exponent(ranked)
    except ValueError:
        return None, None, None
    return round(estimate, DECIMALS), round(low, DECIMALS), round(high, DECIMALS)


def _counts(path: Path) -> Iterator[tuple[str, int]]:
    """(key, drawn) of the words that the input holds outside the primer, without the filler words."""
    try:
        table = ds.dataset(path, format="parquet")
        # Attempts that were harvested before the primer was counted apart.
        name = "drawn" if "drawn" in table.schema.names else "expected"
        for batch in table.to_batches(columns=["key", name]):
            for key, drawn in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
                if drawn and len(key) != WORD_CHARACTERS:
                    yield key, drawn
    except OSError as error:
        raise InfrastructureError(f"{path}: cannot be read ({error}); clear the task harvest") from error
