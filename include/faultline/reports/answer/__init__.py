"""The answer of a sweep: in words, on standard output, and for the templates of the report and the results page."""
