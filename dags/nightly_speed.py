"""Faultline's own speed, each night; see `faultline.orchestration.nights.nightly_speed`."""

from faultline.orchestration.nights.nightly_speed import speed_dag

dag = speed_dag()
