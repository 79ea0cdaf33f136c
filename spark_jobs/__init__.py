"""Programs handed to spark-submit: the workloads and the harvest. They know Spark, and nothing of Airflow."""
