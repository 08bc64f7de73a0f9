"""`areal-sdk traces`: recorded conversations as data to learn from; routes by which users read and rate their own."""

from areal_sdk import hookimpl


@hookimpl
def register_commands(group):  # type: ignore[no-untyped-def]
    from areal_sdk_traces.command import traces

    group.add_command(traces)


@hookimpl
def register_routes(register):  # type: ignore[no-untyped-def]
    for name in ("LIST", "SHOW", "RATE"):
        register(f"traces_{name.lower()}", f"areal_sdk_traces.routes:{name}")
