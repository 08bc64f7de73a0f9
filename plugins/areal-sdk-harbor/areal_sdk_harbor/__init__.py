"""Tasks in Harbor's format: a dataset, and an agent that plays them in sandboxes of this machine."""

from areal_sdk import hookimpl


@hookimpl
def register_datasets(register):  # type: ignore[no-untyped-def]
    register("harbor", "areal_sdk_harbor.dataset:tasks")


@hookimpl
def register_agents(register):  # type: ignore[no-untyped-def]
    register("harbor", "areal_sdk_harbor.agent:Harbor")


@hookimpl
def register_commands(group):  # type: ignore[no-untyped-def]
    from areal_sdk_harbor.command import harbor

    group.add_command(harbor)
