"""What is refused is told in one line, which begins with what is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from faultline.system.errors import ConfigError


@contextmanager
def refused(said: str, *words: str, kind: type[Exception] = ConfigError) -> Iterator[None]:
    """Yield the block must be refused in one line that begins so, and has these `words`."""
    with pytest.raises(kind) as caught:
        yield
    text = str(caught.value)
    assert text.startswith(said) and "\n" not in text and all(word in text for word in words), text
