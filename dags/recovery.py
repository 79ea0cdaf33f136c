"""Recovery: victim × checkpoint interval, state size as a parameter; the paper's failure tests."""

from faultline.orchestration.sweep import matrix_dag

dag = matrix_dag("recovery")
