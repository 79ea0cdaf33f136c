"""Faultline: benchmarks stream processing under faults, with the evidence behind every number."""

__version__ = "0.2.0"
