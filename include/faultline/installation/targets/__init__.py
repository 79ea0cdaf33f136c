"""Existing clusters: their Connections, credential files and preflight checks."""
