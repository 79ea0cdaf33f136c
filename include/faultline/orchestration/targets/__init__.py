"""Connections of targets."""
