"""Recovery of Spark and of Flink after the same kills: commit mode or heartbeats × state × interval × victim."""

from faultline.orchestration.matrix_dag import matrix_dag

dag = matrix_dag("spark_and_flink_recovery")
