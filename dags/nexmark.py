"""Nexmark: events per second and core of each query."""

from faultline.orchestration.matrix_dag import matrix_dag

dag = matrix_dag("nexmark")
