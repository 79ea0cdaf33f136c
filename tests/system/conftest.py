"""Fixtures of the system layer."""

from __future__ import annotations

from tests.support.browser import airflow as airflow
from tests.support.browser import artefacts as artefacts
from tests.support.browser import browser as browser
from tests.support.browser import ui as ui
