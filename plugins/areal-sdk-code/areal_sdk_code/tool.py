"""The Python tool: runs a model's code in a sandbox and tells what it wrote."""

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from areal_sdk_sandbox import Isolation, Limits, Sandbox

_NAME = "run_python"


class PythonTool:
    """A tool for agents and environments. Each call is a process of its own: nothing is kept.

    `definition` is offered to the model, and `call` answers a call of it.
    """

    definition: ClassVar[dict[str, Any]] = {
        "type": "function",
        "function": {
            "name": _NAME,
            "description": "Run a Python program. Returns what it prints. Nothing is kept between calls.",
            "parameters": {
                "type": "object",
                "properties": {"code": {"type": "string"}},
                "required": ["code"],
            },
        },
    }
    name = _NAME

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        isolation: Isolation = "auto",
        max_characters: int = 2000,
    ) -> None:
        self._sandbox = Sandbox(limits or Limits(wall_s=5.0, cpu_s=5.0), isolation=isolation)
        self._max_characters = max_characters

    async def call(self, arguments: str | Mapping[str, Any]) -> str:
        """The answer to the model, also if its arguments are malformed."""
        try:
            parsed = json.loads(arguments) if isinstance(arguments, str) else arguments
        except (ValueError, RecursionError):
            parsed = None
        code = parsed.get("code") if isinstance(parsed, Mapping) else None
        if not isinstance(code, str):
            return f'error: call {_NAME} with {{"code": "..."}}'
        return await self.run(code)

    async def run(self, code: str) -> str:
        """The output of the program (the end of a long one), and the way it ended if it failed."""
        files = {"program.py": code.encode(errors="replace")}
        end = await self._sandbox.run(["python3", "-I", "program.py"], files=files)
        written = (end.stdout + end.stderr).decode(errors="replace").strip()
        if len(written) > self._max_characters:
            written = f"[the end of {len(written)} characters]\n{written[-self._max_characters :]}"
        if end.limit:
            return f"{written}\n[{end}]".strip()
        return written or ("[it printed nothing]" if end.ok else f"[{end}, and it printed nothing]")
