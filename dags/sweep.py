"""A sweep without a subject of its own: any workload, along the axes that somebody names."""

from faultline.orchestration.matrix_dag import matrix_dag

dag = matrix_dag("sweep")
