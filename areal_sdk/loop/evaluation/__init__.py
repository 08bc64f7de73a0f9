"""Evaluations of a run: when one is due, what it measures, and the best weights so far."""
