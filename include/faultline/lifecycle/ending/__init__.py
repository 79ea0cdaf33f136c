"""The end of a measurement: what the engine still has to commit."""
