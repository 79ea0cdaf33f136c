"""One experiment; see `faultline.orchestration.experiment`."""

from faultline.orchestration.experiment import experiment_dag

dag = experiment_dag()
