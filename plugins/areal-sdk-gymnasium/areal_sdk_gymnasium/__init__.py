"""Gymnasium environments in words, and their tasks."""

from areal_sdk import hookimpl


@hookimpl
def register_environments(register):  # type: ignore[no-untyped-def]
    register("gymnasium", "areal_sdk_gymnasium.environment:GymnasiumText")


@hookimpl
def register_datasets(register):  # type: ignore[no-untyped-def]
    register("gymnasium", "areal_sdk_gymnasium.datasets:tasks")
    register("frozen_lake_maps", "areal_sdk_gymnasium.datasets:frozen_lake_maps")
