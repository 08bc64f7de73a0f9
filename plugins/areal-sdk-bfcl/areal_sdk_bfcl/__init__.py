"""BFCL v4 multi-turn: its conversations as tasks, and the environment that plays and judges them."""

from areal_sdk import hookimpl


@hookimpl
def register_datasets(register):  # type: ignore[no-untyped-def]
    register("bfcl", "areal_sdk_bfcl.dataset:tasks")


@hookimpl
def register_environments(register):  # type: ignore[no-untyped-def]
    register("bfcl", "areal_sdk_bfcl.environment:Bfcl")
