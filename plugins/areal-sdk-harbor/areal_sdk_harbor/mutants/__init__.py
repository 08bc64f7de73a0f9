"""Tasks out of source distributions: one function is changed until the distribution's own tests fail."""
