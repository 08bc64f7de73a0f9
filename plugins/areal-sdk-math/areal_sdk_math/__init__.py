"""Rewards for mathematics, and the tasks of GSM8K."""

from areal_sdk import hookimpl


@hookimpl
def register_rewards(register):  # type: ignore[no-untyped-def]
    register("boxed_answer", "areal_sdk_math.rewards:boxed_answer")
    register("hash_answer", "areal_sdk_math.rewards:hash_answer")
    register("final_number", "areal_sdk_math.rewards:final_number")
    register("math_answer", "areal_sdk_math.rewards:math_answer")


@hookimpl
def register_datasets(register):  # type: ignore[no-untyped-def]
    register("gsm8k", "areal_sdk_math.gsm8k:tasks")
