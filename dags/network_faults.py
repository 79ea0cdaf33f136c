"""Faults of hosts: victim × what is done to its host, on several hosts."""

from faultline.orchestration.matrix_dag import matrix_dag

dag = matrix_dag("network_faults")
