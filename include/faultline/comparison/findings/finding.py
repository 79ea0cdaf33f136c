"""A claim of a paper, the test of it, and what came out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from faultline.records.record import Record


class Verdict(StrEnum):
    """What a measurement says of a claim."""

    AGREES = "agrees"
    DISAGREES = "disagrees"
    CANNOT_TELL = "cannot tell"


# The verdict, and in one line what it rests on.
Outcome = tuple[Verdict, str]
Test = Callable[[Sequence[Record]], Outcome]


@dataclass(frozen=True)
class Claim:
    """What a paper says, where it says so, and how records are asked. `test` gets all records, valid or not."""

    text: str
    source: str
    test: Test


@dataclass(frozen=True)
class Finding:
    """A claim with its verdict and the evidence for it."""

    claim: Claim
    verdict: Verdict
    evidence: str
