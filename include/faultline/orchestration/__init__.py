"""The only core package that imports Airflow: DAG factory, operators, adapters to the providers."""
