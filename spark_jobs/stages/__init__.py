"""Four mechanisms that keep a chain of stages responsive under overload, after Lu et al. (2020), algorithms 1 to 3.

`pressure`, `admission`, `replay`, `replacement` and `persistence` hold the rules, which know neither Spark nor Kafka;
`source` and `chain` apply them to streaming queries that Kafka topics link.
"""
