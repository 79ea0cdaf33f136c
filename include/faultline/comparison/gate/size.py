"""How many pairs a night measures where nobody says; apart, since a form asks, and needs no statistics."""

from __future__ import annotations

# One configuration alone can be certain beyond doubt from 14 pairs on, each of two from 15; ten percent more work is
# suspected in four nights of five from 12 on, and with fewer than eight of two nothing could be:
# docs/explanation/comparing.md.
PAIRS = 15
