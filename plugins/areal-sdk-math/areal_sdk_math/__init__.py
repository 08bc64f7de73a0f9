"""Rewards for mathematics."""

from areal_sdk import hookimpl


@hookimpl
def register_rewards(register):  # type: ignore[no-untyped-def]
    register("boxed_answer", "areal_sdk_math.rewards:boxed_answer")
    register("hash_answer", "areal_sdk_math.rewards:hash_answer")
