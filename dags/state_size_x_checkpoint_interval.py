"""State size × checkpoint interval: their cost in normal operation and after a kill."""

from faultline.orchestration.matrix_dag import matrix_dag

dag = matrix_dag("state_size_x_checkpoint_interval")
