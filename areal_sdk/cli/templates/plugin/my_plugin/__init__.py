"""The plugin: hooks that register, nothing else. Keep imports light; they run at every start."""

from areal_sdk import hookimpl


@hookimpl
def register_rewards(register):  # type: ignore[no-untyped-def]
    register("brevity", "my_plugin.rewards:brevity")
