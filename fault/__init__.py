"""Breaking things on purpose: plans, victims, guard rails and injectors.

Knows nothing of Faultline's core, of the generators, of Airflow or of Spark.
"""
