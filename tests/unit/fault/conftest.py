"""Processes to find and to hit, for the tests of this room."""

from tests.unit.sleepers import run as run
from tests.unit.sleepers import spawn as spawn
