"""Nightly regression: the same configurations in every nightly run, compared with earlier ones or a reference build."""

from faultline.orchestration.nightly.dag_factory import nightly_dags

globals().update(nightly_dags())
