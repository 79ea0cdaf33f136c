"""Paced producers: the records of an experiment, made and sent on an open-loop schedule."""
