"""AgentDojo: its tasks, the environment that plays them, and the reward that judges as AgentDojo does."""

from areal_sdk import hookimpl


@hookimpl
def register_datasets(register):  # type: ignore[no-untyped-def]
    register("agentdojo", "areal_sdk_agentdojo.dataset:tasks")


@hookimpl
def register_environments(register):  # type: ignore[no-untyped-def]
    register("agentdojo", "areal_sdk_agentdojo.environment:AgentDojo")


@hookimpl
def register_rewards(register):  # type: ignore[no-untyped-def]
    register("agentdojo", "areal_sdk_agentdojo.rewards:agentdojo")
