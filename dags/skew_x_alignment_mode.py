"""Skew × alignment mode: cost of a common checkpoint with unequal keys."""

from faultline.orchestration.matrix_dag import matrix_dag

dag = matrix_dag("skew_x_alignment_mode")
