"""The answers of the API: what a page asks of a run, one module for each view. They read and compute, and know no HTTP."""
