"""Targets (external clusters): their Connections, credential files and preflight checks."""
