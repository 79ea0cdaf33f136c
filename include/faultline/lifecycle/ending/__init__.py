"""End of a measurement: drain of the engine and undo replay."""
