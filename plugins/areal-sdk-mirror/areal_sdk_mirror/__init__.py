"""The mirror of a run (`run.mirror`): a copy at another place, which outlives the run's machine."""

from areal_sdk import hookimpl


@hookimpl
def register_commands(group):  # type: ignore[no-untyped-def]
    from areal_sdk_mirror.command import fetch

    group.add_command(fetch)
