"""General sweep: any workload, with freely chosen axes."""

from faultline.orchestration.matrix_dag import matrix_dag

dag = matrix_dag("sweep")
