"""What a run needs, found from its settings: agent, tasks, demonstrations, model and parts."""
