"""Queries in the form that keeps all events and emits every change."""
