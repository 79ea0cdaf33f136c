"""The measured window: its signals, its start and end, and the instants of faults in it."""
