"""The engine with known truth: a plain consumer and producer whose every instant and count is scripted.

It is the standard against which the measuring chain is checked: what a script plants is what Kafka,
recorder, harvest and judge must give back. Nothing is imported here, because the configuration reads
`faultline.experiment.workloads.known_truth_script` and shall stay light.
"""
