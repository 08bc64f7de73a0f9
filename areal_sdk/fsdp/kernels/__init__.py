"""What the trainer computes in a way of its own: attention over trees, and the output layer."""
