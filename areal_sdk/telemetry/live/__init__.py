"""The present of a run: its waits, code that blocks the event loop, the view in the terminal."""
