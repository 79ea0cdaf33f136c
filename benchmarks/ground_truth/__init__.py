"""Ground truth: the measuring chain against an engine with known figures."""
