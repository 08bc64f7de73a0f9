"""Recorded conversations as environments, and a reward that says whether an episode left its recording."""

from areal_sdk import hookimpl


@hookimpl
def register_environments(register):  # type: ignore[no-untyped-def]
    register("cassette", "areal_sdk_cassettes.environment:CassetteEnvironment")


@hookimpl
def register_rewards(register):  # type: ignore[no-untyped-def]
    register("cassette", "areal_sdk_cassettes.rewards:cassette")
