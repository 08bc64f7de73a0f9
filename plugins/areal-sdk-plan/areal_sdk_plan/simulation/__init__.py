"""A run in simulated time: gate, groups, episodes, servers, trainer, weights and losses of machines."""
