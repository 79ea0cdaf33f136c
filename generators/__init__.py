"""Generators: processes that create an experiment's records and send them on an open-loop schedule."""
