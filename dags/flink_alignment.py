"""Skew × alignment mode on Flink, at a load where alignment can show."""

from faultline.orchestration.matrix_dag import matrix_dag

dag = matrix_dag("flink_alignment")
