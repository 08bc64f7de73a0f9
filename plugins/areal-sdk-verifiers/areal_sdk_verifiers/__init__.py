"""Tasksets and environments of verifiers: a dataset, and an agent that plays them in a Python of their own."""

from areal_sdk import hookimpl


@hookimpl
def register_datasets(register):  # type: ignore[no-untyped-def]
    register("verifiers", "areal_sdk_verifiers.dataset:tasks")


@hookimpl
def register_agents(register):  # type: ignore[no-untyped-def]
    register("verifiers", "areal_sdk_verifiers.agent:Verifiers")
