"""Several children at once: a fixed number of places, lost ones replaced, calls spread over workers."""
