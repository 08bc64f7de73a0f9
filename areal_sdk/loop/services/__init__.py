"""Parts of a run that are started and closed: engine, trainer, gateway, agents, nodes."""
