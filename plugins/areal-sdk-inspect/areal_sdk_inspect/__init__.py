"""Tasks of Inspect AI: a dataset of their samples, and an agent that has Inspect play them in a Python of its own."""

from areal_sdk import hookimpl


@hookimpl
def register_datasets(register):  # type: ignore[no-untyped-def]
    register("inspect", "areal_sdk_inspect.dataset:tasks")


@hookimpl
def register_agents(register):  # type: ignore[no-untyped-def]
    register("inspect", "areal_sdk_inspect.agent:Inspect")
