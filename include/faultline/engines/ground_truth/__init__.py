"""Ground-truth engine: a plain consumer and producer with a scripted instant for every action.

It checks the measuring chain: Kafka, recorder, harvest (which reads the topics after a run) and judge (which computes
figures and status) must reproduce the planted values.
"""
