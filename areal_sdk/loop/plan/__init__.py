"""Finds the parts of a run from its settings: agent, tasks, demonstrations, model and parts."""
