"""Dynamic topology: what each mechanism is worth."""

from faultline.orchestration.matrix_dag import matrix_dag

dag = matrix_dag("topology_optimisation")
