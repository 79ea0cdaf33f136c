"""Check of errors about invalid input: one line that starts with the invalid key."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from faultline.system.errors import ConfigError


@contextmanager
def refused(start: str, *words: str, kind: type[Exception] = ConfigError) -> Iterator[None]:
    """Check that the block raises a one-line error with this start and these words."""
    with pytest.raises(kind) as caught:
        yield
    text = str(caught.value)
    assert text.startswith(start) and "\n" not in text and all(word in text for word in words), text
