"""Configurations of experiments, matrices of them, and plans of attempts."""
