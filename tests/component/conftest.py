"""Fixtures of the component layer."""

from __future__ import annotations

from tests.support.browser import artefacts as artefacts
from tests.support.browser import browser as browser
