"""Dynamic topology: what each mechanism is worth."""

from faultline.orchestration.sweep import matrix_dag

dag = matrix_dag("topology_optimisation")
