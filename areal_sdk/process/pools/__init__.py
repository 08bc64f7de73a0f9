"""Several children at once: a fixed number of slots, lost ones replaced, calls spread over workers."""
