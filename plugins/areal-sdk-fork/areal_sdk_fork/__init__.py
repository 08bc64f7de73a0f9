"""A recorded episode under other weights: replayed up to a turn and gone on with, or read again token by token."""

from areal_sdk import hookimpl


@hookimpl
def register_commands(group):  # type: ignore[no-untyped-def]
    from areal_sdk_fork.command import fork
    from areal_sdk_fork.read_command import reread

    group.add_command(fork)
    group.add_command(reread)


@hookimpl
def register_engines(register):  # type: ignore[no-untyped-def]
    register("fork", "areal_sdk_fork.engine:ForkEngine")
    register("reread", "areal_sdk_fork.read_engine:RereadEngine")
