"""State size × checkpoint interval: what a larger state and a longer interval cost, and what a kill costs then."""

from faultline.orchestration.matrix_dag import matrix_dag

dag = matrix_dag("state_size_x_checkpoint_interval")
