"""Wire formats: each translates to and from the one internal request and turn."""
