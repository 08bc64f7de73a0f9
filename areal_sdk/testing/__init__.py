"""For tests of agents, rewards, environments and engines, yours included. Imports no torch."""

from areal_sdk.testing.scripted_engine import Fault, Reply, ScriptedEngine, scripted_logprob

__all__ = ["Fault", "Reply", "ScriptedEngine", "scripted_logprob"]
