"""The parts of a model that the trainer computes itself: attention over trees, and the output layer."""
