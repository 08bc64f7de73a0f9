"""The environments of any OpenEnv server, and tasks for them."""

from areal_sdk import hookimpl


@hookimpl
def register_environments(register):  # type: ignore[no-untyped-def]
    register("openenv", "areal_sdk_openenv.environment:OpenEnv")


@hookimpl
def register_datasets(register):  # type: ignore[no-untyped-def]
    register("openenv", "areal_sdk_openenv.tasks:tasks")
