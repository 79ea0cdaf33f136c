"""Nightly self-benchmark; see `faultline.orchestration.nightly.self_benchmark_dag`."""

from faultline.orchestration.nightly.self_benchmark_dag import speed_dag

dag = speed_dag()
