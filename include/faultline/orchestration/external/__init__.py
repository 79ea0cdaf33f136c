"""Faultline in an external Airflow: a folder of DAGs there, whose tasks have their work done here."""
