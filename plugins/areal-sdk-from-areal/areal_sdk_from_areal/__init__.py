"""Plays workflows that are written for AReaL, and translates configurations of AReaL."""

from areal_sdk import hookimpl


@hookimpl
def register_agent_forms(register):  # type: ignore[no-untyped-def]
    register("arun_episode", "areal_sdk_from_areal.workflows:WORKFLOW")
