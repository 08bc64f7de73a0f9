"""The trainer `plain`: a whole model in one thread, with AdamW and the algorithm of the run."""

from collections.abc import Callable

from areal_sdk import hookimpl


@hookimpl
def register_trainers(register: Callable[[str, str], None]) -> None:
    register("plain", "areal_sdk_plain.trainer:PlainTrainer")
