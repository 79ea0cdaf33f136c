"""Nightly regression: the same configurations each night, held against the nights before."""

from faultline.orchestration.nightly import nightly_dag

dag = nightly_dag()
