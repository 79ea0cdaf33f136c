"""Dynamic topology: effect of each mechanism."""

from faultline.orchestration.matrix_dag import matrix_dag

dag = matrix_dag("topology_optimisation")
