"""The way from tasks to groups of trajectories: playing, scoring, admitting and cutting batches."""
