"""A plugin with an engine `adder`: it calls the tool `add`, or never answers."""

from collections.abc import Callable
from pathlib import Path

from areal_sdk import GenerateRequest, hookimpl
from areal_sdk.testing import Fault, Reply, ScriptedEngine, tool_call


class Adder(ScriptedEngine):
    def __init__(self, *, model_dir: Path, log_dir: Path, asked: str = "") -> None:
        """`asked`: a file to make when a request comes; none is answered then."""
        self._asked = Path(asked) if asked else None
        super().__init__(self._answer, model_dir=model_dir)

    def _answer(self, request: GenerateRequest) -> Reply | str:
        if self._asked is None:
            return tool_call("add", a=2, b=3)
        self._asked.touch()
        return Reply(fault=Fault.HANG)


@hookimpl
def register_engines(register: Callable[[str, object], None]) -> None:
    register("adder", Adder)
