"""Nights whose build was measured beside a baseline, in pairs: their verdict, and how plans and records lead to it."""
