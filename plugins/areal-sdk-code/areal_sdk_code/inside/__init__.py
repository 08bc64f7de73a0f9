"""Scripts that run inside sandboxes. They import the standard library and each other, nothing else."""
