"""What runs a workload, and the evidence that it leaves."""
