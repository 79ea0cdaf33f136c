"""Regression gate: paired comparison of a nightly run's build with a reference build."""
