"""End of an attempt: drain, undo replay and cleanup of orphans."""
