"""The plugin: hooks that register, nothing else. Keep imports light; they run at every start."""

from areal_sdk import hookimpl


@hookimpl
def register_environments(register):  # type: ignore[no-untyped-def]
    register("my_plugin", "my_plugin.environment:MyPlugin")


@hookimpl
def register_datasets(register):  # type: ignore[no-untyped-def]
    register("my_plugin", "my_plugin.dataset:tasks")
