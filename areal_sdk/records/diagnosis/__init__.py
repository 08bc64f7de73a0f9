"""The verdict on a run: what its metrics show, what it lacks, and what to change."""
