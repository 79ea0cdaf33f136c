"""Faultline's own speed, each night; see `faultline.orchestration.nightly_speed`."""

from faultline.orchestration.nightly_speed import speed_dag

dag = speed_dag()
