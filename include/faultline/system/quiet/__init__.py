"""What keeps a measured window quiet: its lock, and background processes that give way."""
