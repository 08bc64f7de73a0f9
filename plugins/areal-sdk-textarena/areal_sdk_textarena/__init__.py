"""Games of TextArena: the agent that plays them, and their tasks."""

from areal_sdk import hookimpl


@hookimpl
def register_agents(register):  # type: ignore[no-untyped-def]
    register("textarena", "areal_sdk_textarena.agent:TextArena")


@hookimpl
def register_datasets(register):  # type: ignore[no-untyped-def]
    register("textarena", "areal_sdk_textarena.dataset:tasks")
