"""Nights: the same configurations each night, held against the nights before, or beside a baseline."""

from faultline.orchestration.nightly.dag_factory import nightly_dags

globals().update(nightly_dags())
