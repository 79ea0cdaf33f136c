"""Nights: their DAGs, what they measure, and who is told."""
