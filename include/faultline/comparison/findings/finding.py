"""A claim of a paper, the test of it, and what came out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from faultline.records.record import Record


class Verdict(StrEnum):
    """What a measurement says of a claim."""

    AGREES = "agrees"
    DISAGREES = "disagrees"
    CANNOT_TELL = "cannot tell"
    # These runs were not made for it: others of the same matrix answer.
    NOT_ASKED = "not asked"
    # Nothing that is measured here could answer it: another engine, or a larger machine, would.
    NOT_TESTABLE = "not testable here"


# Of records that hold what a claim is about.
ANSWERED = (Verdict.AGREES, Verdict.DISAGREES, Verdict.CANNOT_TELL)


class Outcome(NamedTuple):
    """The verdict, and in one line what it rests on. `p`: how likely such figures are by chance, two-sided, where that
    is what the verdict rests on; of all such verdicts on a page some would be wrong, so they are corrected together."""

    verdict: Verdict
    evidence: str
    p: float | None = None


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
