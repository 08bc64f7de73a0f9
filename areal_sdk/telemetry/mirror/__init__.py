"""The mirror of a run: a copy at another place, which outlives the run's machine."""
