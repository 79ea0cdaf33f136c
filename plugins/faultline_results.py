"""Airflow plugin: the results page, and its entry in the navigation."""

from airflow.plugins_manager import AirflowPlugin

from faultline.orchestration.results_page import PREFIX, results_app


class FaultlineResults(AirflowPlugin):
    """Serves the reports under /faultline."""

    name = "faultline_results"
    fastapi_apps = [{"app": results_app(), "url_prefix": PREFIX, "name": "Faultline results"}]
    external_views = [
        {"name": "Faultline", "href": f"{PREFIX}/", "destination": "nav", "url_route": "faultline-results"}
    ]
