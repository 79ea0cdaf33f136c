"""Paced producers: the records of an experiment, made and sent on an open-loop schedule.

`python -m generators` is the program; `spec` its input, `journal` its output, `life` its course.
"""
