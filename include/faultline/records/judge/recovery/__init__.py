"""What became of each fault: its timeline, the parts of its recovery, and when that ended."""
