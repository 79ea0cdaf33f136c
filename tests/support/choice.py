"""Of many alike, some in every run, and the others with --thorough."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pytest
from _pytest.mark import ParameterSet


def chosen(every: Iterable[str], always: Collection[str]) -> list[ParameterSet]:
    """Parameters of a test: `always` of `every` in every run."""
    return [pytest.param(one, marks=() if one in always else pytest.mark.thorough) for one in every]
