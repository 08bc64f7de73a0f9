"""Agents: what counts as one, and how one plays an episode, here or in a worker process."""
