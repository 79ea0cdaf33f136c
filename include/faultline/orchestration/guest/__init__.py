"""Faultline as a guest in an Airflow of others: a folder of thin DAGs there, and the conductor that does the work."""
