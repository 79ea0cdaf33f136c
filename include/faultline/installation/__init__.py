"""The services that experiments run on, and those that exist already."""
