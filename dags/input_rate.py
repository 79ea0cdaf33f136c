"""Input rate: latency, GC and CPU as the load grows, and the highest rate that is sustained."""

from faultline.orchestration.matrix_dag import matrix_dag

dag = matrix_dag("input_rate")
