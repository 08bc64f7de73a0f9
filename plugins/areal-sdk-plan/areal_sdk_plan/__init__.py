"""`areal-sdk plan`: a simulation of the whole loop that says what a split of machines will give."""

from areal_sdk import hookimpl


@hookimpl
def register_commands(group):  # type: ignore[no-untyped-def]
    from areal_sdk_plan.command import plan

    group.add_command(plan)
