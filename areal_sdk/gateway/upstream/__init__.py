"""Another provider behind our door: calls are passed on, and what was said is kept."""
