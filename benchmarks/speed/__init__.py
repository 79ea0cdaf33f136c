"""Self-benchmarks: speed of Faultline itself."""
