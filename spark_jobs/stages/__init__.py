"""Four mechanisms that keep a chain of stages responsive under overload (Lu et al. 2020, algorithms 1 to 3).

`pressure`, `admission`, `replay`, `replacement` and `delayed_queue` hold the rules, without Spark and Kafka; `source`
and `chain` apply them to streaming queries linked by Kafka topics.
"""
