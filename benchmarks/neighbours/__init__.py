"""Neighbours of an experiment, and how much they change what it measures."""
