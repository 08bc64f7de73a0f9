"""The forward pass of the embedded engine: architecture, layers, keys and values, weights from a checkpoint."""
