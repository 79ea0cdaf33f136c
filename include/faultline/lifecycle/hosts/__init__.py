"""Recordings and clocks of other hosts."""
