"""Spark: its settings and programs, and what is read from its checkpoint and logs."""
