"""Measured window: signals, start and end, and instants of faults."""
