"""Fault injection: plans, victims, guard checks and injectors.

Independent of Faultline's core, the generators, Airflow and Spark.
"""
