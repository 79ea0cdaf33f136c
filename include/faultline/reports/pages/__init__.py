"""The results page: what it shows, as functions from the index of the records to HTML, and the app that serves it.

Only the addresses stand here, because every process of Airflow reads them, and only one serves pages.
"""

# Below Airflow's own address.
PREFIX = "/faultline"
# The page inside the frame of Airflow's UI.
UI_ROUTE = "faultline-results"
UI_PAGE = f"/plugin/{UI_ROUTE}{PREFIX}"
