"""Nexmark: an auction's events, made from their numbers, and the queries of the suite over them.

Imported by the program `nexmark_query.py`, which stands beside this folder.
"""
