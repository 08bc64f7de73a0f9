"""The sandbox of a command (`--command ... --sandbox`).

It sees the files that the command names and those of `agent.readable`, writes to a directory of its own, and
reaches the session of its episode and nothing else.
"""

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from areal_sdk.errors import AgentError, ConfigError
from areal_sdk_sandbox.forwarding import INNER_ADDRESS
from areal_sdk_sandbox.limits import Limits
from areal_sdk_sandbox.run import Sandbox, SandboxEnd, why_not_isolated

_TASK_FILE = "task.json"
_ENDLESS_S = 30 * 24 * 3600.0
"""A deadline that never passes: that of the episode ends a command, and its message says more."""
_OUTPUT_KB = 4096


class CommandSandbox:
    """Runs the words of a command, each run in a sandbox of its own."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        readable: Sequence[str] = (),
        memory_mb: int = 2048,
        cpu_s: float = _ENDLESS_S,
        processes: int = 64,
        disk_mb: int = 256,
    ) -> None:
        """Raise ConfigError if programs cannot be isolated: no warning would hold back a model's program."""
        limits = _limits(memory_mb, cpu_s, processes, disk_mb)
        if problem := why_not_isolated():
            raise ConfigError(f"agent.sandbox: {problem}, or leave --sandbox out")
        self._words, seen = command_files(words, readable)
        self._sandbox = Sandbox(limits, isolation="bubblewrap", readable=seen)

    async def run(
        self,
        *,
        task: bytes,
        task_variable: str,
        base_url: str,
        env: Callable[[str], Mapping[str, str]],
    ) -> SandboxEnd:
        """Run to the end. `env` returns the variables for the session's address inside the sandbox."""
        url = urlsplit(base_url)
        if url.scheme != "http" or url.hostname is None:
            raise AgentError(
                f"agent.sandbox: a command in a sandbox reaches addresses of http, not {base_url}: put "
                "`areal-sdk serve --upstream` between them"
            )
        inside = url._replace(netloc=INNER_ADDRESS).geturl()
        return await self._sandbox.run(
            self._words,
            stdin=task,
            files={_TASK_FILE: task},
            env={**env(inside), task_variable: f"/tmp/{_TASK_FILE}"},
            reaches=(url.hostname, url.port or 80),
        )


def command_files(words: Sequence[str], readable: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words of a command with whole paths, and the paths that a sandbox has to show it."""
    for path in readable:
        if not Path(path).expanduser().exists():
            raise ConfigError(f"agent.readable: there is no {path}")
    files = {word: str(Path(word).resolve()) for word in words[1:] if os.path.isfile(word)}
    program = shutil.which(words[0]) or words[0]
    # Of pyenv, asdf and the like: scripts that seek the program.
    if Path(program).parent.name == "shims":
        raise ConfigError(
            f"agent.sandbox: {program} stands for a program that a sandbox does not see: name the program "
            f"itself, such as {sys.executable}"
        )
    whole = [os.path.abspath(program), *(files.get(word, word) for word in words[1:])]
    seen = [*_installation(Path(whole[0])), *files.values()]
    return whole, [*seen, *(str(Path(path).expanduser()) for path in readable)]


def _limits(memory_mb: int, cpu_s: float, processes: int, disk_mb: int) -> Limits:
    try:
        return Limits(
            wall_s=_ENDLESS_S,
            cpu_s=cpu_s,
            memory_mb=memory_mb,
            processes=processes,
            disk_mb=disk_mb,
            output_kb=_OUTPUT_KB,
        )
    except ValueError as exc:
        raise ConfigError(f"agent.{exc}") from None


def _installation(program: Path) -> list[str]:
    """The paths that `program` needs to start: PREFIX for PREFIX/bin/NAME, else the file. A home directory is never
    such a prefix: of ~/bin only the program is visible.
    """
    found = []
    home = Path.home()
    for path in dict.fromkeys((program, program.resolve())):
        prefix = path.parent.parent
        is_prefix = path.parent.name == "bin" and prefix != Path("/")
        is_private = home == prefix or home.is_relative_to(prefix)
        found.append(str(prefix if is_prefix and not is_private else path))
    return found
