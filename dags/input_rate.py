"""Input rate: latency, GC and CPU under growing load, and the highest sustained rate."""

from faultline.orchestration.matrix_dag import matrix_dag

dag = matrix_dag("input_rate")
