"""A run that learns: its steps, what feeds them, how it ends, and what a checkpoint keeps of it."""
