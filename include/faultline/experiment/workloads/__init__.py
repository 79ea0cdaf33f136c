"""Workloads: their parameters and capabilities."""
