"""The memory of a step of the trainer."""
