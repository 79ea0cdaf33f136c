"""Connections of targets, read and made through Airflow."""
