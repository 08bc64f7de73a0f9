"""Forks of episodes: a recorded episode is replayed up to a turn, and goes on under other weights."""

from areal_sdk import hookimpl


@hookimpl
def register_commands(group):  # type: ignore[no-untyped-def]
    from areal_sdk_fork.command import fork

    group.add_command(fork)


@hookimpl
def register_engines(register):  # type: ignore[no-untyped-def]
    register("fork", "areal_sdk_fork.engine:ForkEngine")
