"""Results at rest: the record, the store that keeps it, and what is looked up there."""
