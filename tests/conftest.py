"""Settings that hold for all tests."""

from __future__ import annotations

from hypothesis import settings

# No test is timed: a busy machine makes an example slow, not wrong.
settings.register_profile("faultline", deadline=None)
settings.load_profile("faultline")
