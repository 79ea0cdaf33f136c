"""Benchmarks: each module measures one part of Faultline and returns figures by name."""
