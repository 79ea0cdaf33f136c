"""Airflow plugin: results page, its places in the UI, and links to it."""

from airflow.plugins_manager import AirflowPlugin

from faultline.installation.server_proof import PREFIX as PROOF
from faultline.orchestration.results_page import VIEWS, ProofApp, ResultsApp, ResultsLink
from faultline.reports.pages import PREFIX


class FaultlineResults(AirflowPlugin):
    """Plugin that serves the results under /faultline and links to them from every DAG, run and task."""

    name = "faultline_results"
    fastapi_apps = [
        {"app": ResultsApp(), "url_prefix": PREFIX, "name": "Faultline results"},
        {"app": ProofApp(), "url_prefix": PROOF, "name": "Faultline proof"},
    ]
    external_views = list(VIEWS)
    global_operator_extra_links = [ResultsLink()]
