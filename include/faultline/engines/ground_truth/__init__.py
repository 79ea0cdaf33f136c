"""Ground-truth engine: a plain consumer and producer with a scripted instant for every action.

It is the standard for the measuring chain: Kafka, recorder, harvest and judge must reproduce the planted values. This
module imports nothing, because the configuration reads `faultline.experiment.workloads.known_truth_script` and must
stay light.
"""
