"""Engines, which run workloads, and the evidence that they leave."""
