"""Results pages: functions from the record index to HTML, and the app that serves them.

This module holds only the addresses, because every Airflow process imports it.
"""

# Path below Airflow's address.
PREFIX = "/faultline"
# Page inside the frame of Airflow's UI.
UI_ROUTE = "faultline-results"
UI_PAGE = f"/plugin/{UI_ROUTE}{PREFIX}"
