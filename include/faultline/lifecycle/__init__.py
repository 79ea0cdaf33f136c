"""One attempt, step by step, and the processes that live across the steps."""
