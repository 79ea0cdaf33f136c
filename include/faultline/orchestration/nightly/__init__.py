"""Nightly DAGs: regression runs, self-benchmark and alerts."""
