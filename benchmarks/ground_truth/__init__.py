"""The measuring held against an engine whose figures are known."""
