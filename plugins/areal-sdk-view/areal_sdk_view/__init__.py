"""The viewer: a run in a browser, read from its directory, live or a year later."""

from areal_sdk import hookimpl


@hookimpl
def register_commands(group):  # type: ignore[no-untyped-def]
    from areal_sdk_view.command import view

    group.add_command(view)


@hookimpl
def register_observers(register):  # type: ignore[no-untyped-def]
    register("view", "areal_sdk_view.observer:View")
