"""Probes: groups of attempts at an agent's tasks before anything is trained, and what to change first."""

from areal_sdk import hookimpl


@hookimpl
def register_commands(group):  # type: ignore[no-untyped-def]
    from areal_sdk_probe.command import probe

    group.add_command(probe)


@hookimpl
def register_engines(register):  # type: ignore[no-untyped-def]
    register("replay", "areal_sdk_probe.replay:ReplayEngine")
