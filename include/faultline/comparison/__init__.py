"""Comparison of records: points, groups, nightly runs, and missing cells of a sweep."""
