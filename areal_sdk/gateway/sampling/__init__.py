"""From one checked request to sampled tokens to a recorded turn."""
