"""Sessions and their recorded turns, and the search for the turn that a request continues."""
