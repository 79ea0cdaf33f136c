"""Executor cores: whether more cores in each executor lower the latency."""

from faultline.orchestration.matrix_dag import matrix_dag

dag = matrix_dag("executor_cores")
