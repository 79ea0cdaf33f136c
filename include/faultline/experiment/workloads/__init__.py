"""The workloads: what each one's parameters are, and what it can have."""
