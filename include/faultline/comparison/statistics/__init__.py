"""Repetitions, compared: medians with intervals, rank tests that know of censoring, verdicts, and change points.

Pure functions over numbers; what a record is, they do not know. Explained in docs/explanation/comparing.md.
"""

# Fewer repetitions a side than this give no verdict.
LEAST = 5
