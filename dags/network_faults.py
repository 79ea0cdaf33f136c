"""Faults of hosts: victim × host action, on several hosts."""

from faultline.orchestration.matrix_dag import matrix_dag

dag = matrix_dag("network_faults")
