"""A run's settings: one model per TOML section, defaults that are the recommendation."""
