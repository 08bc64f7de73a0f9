"""What a step of the trainer holds in memory."""
