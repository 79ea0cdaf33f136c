"""From the raw files of one attempt to its record."""
