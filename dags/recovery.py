"""Recovery: victim × checkpoint interval, with state size as a parameter; the paper's failure tests."""

from faultline.orchestration.matrix_dag import matrix_dag

dag = matrix_dag("recovery")
