"""Background CPU next to an experiment, and its effect on the figures."""
