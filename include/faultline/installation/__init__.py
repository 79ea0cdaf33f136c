"""The services that experiments run on: the embedded ones, and targets (external clusters)."""
