"""Records beside each other: cells, sides, nights, and what a sweep still misses."""
