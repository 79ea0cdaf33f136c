"""Durability of an installation through power failures."""
