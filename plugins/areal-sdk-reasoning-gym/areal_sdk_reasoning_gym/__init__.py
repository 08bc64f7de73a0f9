"""The families of reasoning-gym: tasks, the environment that asks them, and their reward."""

from areal_sdk import hookimpl


@hookimpl
def register_datasets(register):  # type: ignore[no-untyped-def]
    register("reasoning_gym", "areal_sdk_reasoning_gym.dataset:tasks")


@hookimpl
def register_environments(register):  # type: ignore[no-untyped-def]
    register("reasoning_gym", "areal_sdk_reasoning_gym.environment:ReasoningGym")


@hookimpl
def register_rewards(register):  # type: ignore[no-untyped-def]
    register("reasoning_gym", "areal_sdk_reasoning_gym.rewards:reasoning_gym")
