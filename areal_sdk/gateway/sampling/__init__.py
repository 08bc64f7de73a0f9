"""The way of one checked request to sampled tokens and a recorded turn."""
