"""Rollout nodes: processes that play episodes, each with a gateway, agents and rewards of its own."""
