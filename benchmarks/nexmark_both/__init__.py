"""Nexmark on Spark and Flink: the same events from one Kafka topic, the same work, with whole-engine costs."""
