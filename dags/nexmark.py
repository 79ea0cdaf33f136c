"""Nexmark: events per second and core of each query."""

from faultline.orchestration.sweep import matrix_dag

dag = matrix_dag("nexmark")
