"""Drives an installation from the command line: runs, sweeps, and what becomes of them."""
