"""Another provider behind the gateway: calls are passed on, and their text is kept."""
