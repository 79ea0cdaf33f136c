"""Selection of test parameters: some run always, the others only with --thorough."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pytest
from _pytest.mark import ParameterSet


def chosen(every: Iterable[str], always: Collection[str]) -> list[ParameterSet]:
    """Return the test parameters `every`, marked thorough unless in `always`."""
    return [pytest.param(one, marks=() if one in always else pytest.mark.thorough) for one in every]
