"""`areal-sdk traces`: conversations that other tools recorded, as data to learn from."""

from areal_sdk import hookimpl


@hookimpl
def register_commands(group):  # type: ignore[no-untyped-def]
    from areal_sdk_traces.command import traces

    group.add_command(traces)
