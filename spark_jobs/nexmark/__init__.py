"""Nexmark: auction events derived from their numbers, and the queries of the suite.

The program `nexmark_query.py` imports it.
"""
