"""Small text games: environments and their tasks."""

from areal_sdk import hookimpl


@hookimpl
def register_environments(register):  # type: ignore[no-untyped-def]
    register("mastermind", "areal_sdk_textgames.mastermind:Mastermind")


@hookimpl
def register_datasets(register):  # type: ignore[no-untyped-def]
    register("mastermind", "areal_sdk_textgames.mastermind:tasks")
