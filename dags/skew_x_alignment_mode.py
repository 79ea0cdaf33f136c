"""Skew × alignment mode: what waiting for a common checkpoint costs when the keys are unequal."""

from faultline.orchestration.matrix_dag import matrix_dag

dag = matrix_dag("skew_x_alignment_mode")
