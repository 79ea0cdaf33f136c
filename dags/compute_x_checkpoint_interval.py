"""Compute × checkpoint interval: whether checkpoints slow heavy work more than light work."""

from faultline.orchestration.matrix_dag import matrix_dag

dag = matrix_dag("compute_x_checkpoint_interval")
