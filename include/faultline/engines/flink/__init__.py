"""Apache Flink: one application-mode cluster per attempt, for SQL jobs."""
