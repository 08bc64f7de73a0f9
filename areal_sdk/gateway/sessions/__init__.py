"""Who calls, what was recorded for them, and which recorded turn a request continues."""
