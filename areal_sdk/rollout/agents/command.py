"""An agent in any language: a command that is run for each episode (`--command "node agent.js"`).

The command gets the task as JSON on stdin, and the addresses and keys of the episode's session in the variables that
the clients of OpenAI and Anthropic read. The verdict is the last line of the command's output that is a JSON object
with a `reward`. The command may also post a reward (`POST /v1/reward`). If reward functions are configured, they
alone judge.

A warm command keeps running. It gets one line for each episode: the task with addresses and keys. It
answers with a line that names the episode.

In a sandbox (`sandbox = true`) a command reaches its session and nothing else.
"""

import contextlib
import errno
import json
import logging
import os
import re
import signal
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from areal_sdk.agent import Agent, AgentLike, EpisodeContext
from areal_sdk.errors import AgentError, ConfigError, EpisodeError, InfrastructureError
from areal_sdk.errors.packages import how_to_install
from areal_sdk.process.programs.command_line import command_name, split_command
from areal_sdk.process.programs.program import ProgramEnd, Programs
from areal_sdk.process.programs.warm import WarmPrograms
from areal_sdk.process.spec import open_log
from areal_sdk.rollout.agents.agent_errors import agent_name, agent_title
from areal_sdk.telemetry.files import to_json
from areal_sdk.types import Outcome, Task

if TYPE_CHECKING:
    from areal_sdk_sandbox import CommandSandbox

logger = logging.getLogger(__name__)

TASK_VARIABLE = "AREAL_SDK_TASK"
"""Variable that names the file with the task, for commands that do not read stdin."""
WARM_VARIABLE = "AREAL_SDK_WARM"
"""Variable that tells a command that it is warm: it must keep running and answer line by line."""
LOG = "agent.log"

_IN_A_SANDBOX = (
    " (in a sandbox: it sees the files that the command names, and those of agent.readable)"
)

_KILLED_FROM_OUTSIDE = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
"""Signals by which the kernel (out of memory) or a person ends a process: no code is to blame."""
_SHELL_SIGNALS = 128
"""Number that shells and container runtimes add to the number of a signal."""
_SCARCE = {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE}
"""Errors of a machine that has no more processes, memory or files."""
_LOGGED_CHARACTERS = 16_000
"""Number of the last characters of stdout, and of stderr, that the log gets for an episode; no limit if the program failed."""
_QUOTED_CHARACTERS = 500
_LINE_END = re.compile(r"[\r\n]+")
"""Pattern of the end of a line. `str.splitlines` would also split at U+2028 and the like, which JSON may contain."""
_SUCCEEDED, _FAILED = 0, 1
"""The exit codes that are verdicts under `reward = "exit_code"`."""


class CommandAgent(Agent):
    """Plays an episode by running `line`.

    `reward = "exit_code"`: 0 is a reward of 1.0, and 1 is 0.0. With `warm` a process plays one episode after another,
    and there are as many processes as episodes at the same time. With `sandbox` each episode is in a sandbox of its
    own, which sees the files that the command names and `readable`, under the limits `memory_mb` (2048), `cpu_s`
    (none), `processes` (64) and `disk_mb` (256).
    """

    def __init__(
        self,
        line: str,
        *,
        reward: Literal["output", "exit_code"] = "output",
        warm: bool = False,
        sandbox: bool = False,
        readable: Sequence[str] = (),
        memory_mb: int | None = None,
        cpu_s: float | None = None,
        processes: int | None = None,
        disk_mb: int | None = None,
    ) -> None:
        if warm and reward == "exit_code":
            raise ConfigError(
                'agent.warm and agent.reward = "exit_code": a warm command plays many episodes and ends '
                "once: leave one of them out"
            )
        if warm and sandbox:
            raise ConfigError(
                "agent.warm and agent.sandbox: a sandbox ends with its episode: leave one of them out"
            )
        limits = {
            "memory_mb": memory_mb,
            "cpu_s": cpu_s,
            "processes": processes,
            "disk_mb": disk_mb,
        }
        given = {name: value for name, value in limits.items() if value is not None}
        if not sandbox and (readable or given):
            raise ConfigError(
                "agent.readable, memory_mb, cpu_s, processes and disk_mb are for a command in a sandbox: "
                "add --sandbox"
            )
        self.line = line
        self.name = command_name(line)
        self._words = split_command(line)
        self._what = f"command {shorten(line, 80)!r}"
        self._reward = reward
        self._log: Path | None = None
        self._programs = Programs()
        self._sandbox = _sandbox(self._words, readable, given) if sandbox else None
        warm_env = {WARM_VARIABLE: "1", **_no_proxy("127.0.0.1", "localhost", "::1")}
        self._warm = WarmPrograms[Mapping[str, Any]](self._words, warm_env) if warm else None

    def keep_output(self, directory: Path) -> None:
        """Keep the output of the episodes in `directory` from now on."""
        self._log = directory / LOG

    @property
    def output_hint(self) -> str:
        """Advice where to find the command's output; empty if no output is kept."""
        return f"; its output: {self._log}" if self._log else ""

    async def run(self, task: Task, context: EpisodeContext) -> Outcome | None:
        try:
            if self._warm is not None:
                return await self._ask(self._warm, task, context)
            return await self._run_once(task, context)
        except OSError as exc:
            raise self._not_started(exc) from exc

    async def aclose(self) -> None:
        """End the warm commands."""
        if self._warm is not None:
            await self._warm.aclose()

    async def _ask(
        self, warm: WarmPrograms[Mapping[str, Any]], task: Task, context: EpisodeContext
    ) -> Outcome | None:
        """The verdict of a warm command."""
        order = {**context.order(task), **_addresses(context)}

        def answer(line: str) -> Mapping[str, Any] | None:
            found = _json_object(line)
            return found if found and found.get("episode") == context.episode_id else None

        def keep(written: ProgramEnd, is_answered: bool) -> None:
            self._keep(context.episode_id, written, "answered" if is_answered else "")

        found = await warm.ask(to_json(order) + b"\n", answer, written=keep)
        if isinstance(found, ProgramEnd):
            if found.code == 0:
                raise AgentError(
                    f"{self._what}: it ended before it had answered: a warm command reads lines until its "
                    "input ends, and answers each"
                )
            raise self._error(found, context.episode_id)
        if error := found.get("error"):
            raise AgentError(f"{self._what}: {str(error)[:_QUOTED_CHARACTERS]}")
        try:
            return _outcome(found) if "reward" in found else None
        except ValueError as exc:
            raise AgentError(f"{self._what}: {exc}") from exc

    async def _run_once(self, task: Task, context: EpisodeContext) -> Outcome | None:
        """The verdict of a command that is run for this episode."""
        if self._sandbox is not None:
            isolated = await self._run_isolated(self._sandbox, task, context)
            self._keep(context.episode_id, isolated)
            return self._verdict(isolated, context.episode_id)
        with tempfile.TemporaryDirectory(prefix="areal-sdk-task-") as scratch:
            file = Path(scratch) / "task.json"
            file.write_bytes(to_json(context.order(task)) + b"\n")
            env = _environment(context, context.base_url) | {TASK_VARIABLE: str(file)}
            end = await self._programs.run(
                self._words, env=env, stdin=file, ended=partial(self._keep, context.episode_id)
            )
        return self._verdict(end, context.episode_id)

    async def _run_isolated(
        self, sandbox: "CommandSandbox", task: Task, context: EpisodeContext
    ) -> ProgramEnd:
        end = await sandbox.run(
            task=to_json(context.order(task)) + b"\n",
            task_variable=TASK_VARIABLE,
            base_url=context.base_url,
            env=partial(_environment, context),
        )
        out, err = (text.decode(errors="replace") for text in (end.stdout, end.stderr))
        limit = str(end) if end.limit else ""
        return ProgramEnd(end.code, None, out, err, end.seconds, limit=limit)

    def _verdict(self, end: ProgramEnd, episode_id: str) -> Outcome | None:
        if self._reward == "exit_code" and end.code in (_SUCCEEDED, _FAILED):
            return Outcome.scored(float(end.code == _SUCCEEDED))
        if end.code != 0:
            raise self._error(end, episode_id)
        try:
            return read_verdict_line(end.stdout)
        except ValueError as exc:
            raise AgentError(f"{self._what}: {exc}") from exc

    def _not_started(self, error: OSError) -> EpisodeError:
        what = f"{self._what} was not started: {error}"
        if error.errno in _SCARCE:
            return InfrastructureError(f"{what}: run fewer at once (rollout.max_inflight)")
        if error.errno == errno.ENOEXEC:
            return AgentError(f"{what}: name its interpreter, or begin it with #!")
        return AgentError(what)

    def _error(self, end: ProgramEnd, episode_id: str) -> EpisodeError:
        # A shell lives on, and tells the signal that ended its child by its own exit code.
        killed_by = (end.code or 0) - _SHELL_SIGNALS if end.signal is None else end.signal
        is_from_outside = killed_by in _KILLED_FROM_OUTSIDE and not end.wrote_too_much
        written = end.stderr.strip() or end.stdout.strip()
        last = f": {_last_line(written)}" if written else ", and it wrote nothing"
        where = f"{self.output_hint}, under {episode_id}" if self._log else ""
        kind: type[EpisodeError] = InfrastructureError if is_from_outside else AgentError
        hint = _IN_A_SANDBOX if self._sandbox is not None and not end.limit else ""
        error = kind(f"{self._what}: {end}{last}{hint}{where}")
        error.trace = written[-8000:]
        return error

    def _keep(self, episode_id: str, end: ProgramEnd, what: str = "") -> None:
        """Append what the program wrote to the log. A log that cannot be written ends no episode."""
        if self._log is None:
            return
        most = _LOGGED_CHARACTERS if end.code == 0 else len(end.stdout) + len(end.stderr)
        parts = [f"--- {episode_id}: {what or end}, after {end.seconds:.2f} s\n"]
        for name, text in (("stdout", end.stdout), ("stderr", end.stderr)):
            if text.strip():
                cut = f" (its last {most} characters)" if len(text) > most else ""
                parts.append(f"[{name}{cut}]\n{text[-most:].rstrip()}\n")
        try:
            with open_log(self._log) as log:
                log.write("".join(parts).encode(errors="replace"))
        except OSError as exc:
            logger.warning("%s cannot be written: %s", self._log, exc)


def _sandbox(
    words: Sequence[str], readable: Sequence[str], limits: Mapping[str, Any]
) -> "CommandSandbox":
    if cure := how_to_install("setting", "agent.sandbox"):
        raise ConfigError(cure)
    from areal_sdk_sandbox import CommandSandbox

    return CommandSandbox(words, readable=readable, **limits)


def silence(agent: AgentLike, why: str) -> str:
    """The error text for an agent that gave no verdict. It includes `why`, the reason why nobody else judged the episode,
    and ends with the cure."""
    if isinstance(agent, CommandAgent):
        return (
            f'command {agent.name!r} printed no verdict and {why}: print a line {{"reward": 0.5}}'
        )
    return f"{agent_title(agent_name(agent))} returned None and {why}: return a number"


def read_verdict_line(output: str) -> Outcome | None:
    """The verdict of the last line that is a JSON object with a `reward`; None without one.

    Raises ValueError for a reward that is no number, and for a success or metrics of the wrong type.

    >>> read_verdict_line('thinking...\\n{"reward": 0.5, "success": false}\\nbye').reward
    0.5
    """
    for line in reversed(_LINE_END.split(output)):
        found = _json_object(line)
        if found is not None and "reward" in found:
            return _outcome(found)
    return None


def _outcome(found: Mapping[str, Any]) -> Outcome:
    reward, success = found["reward"], found.get("success")
    if reward is None:
        return Outcome.abstained("the command printed a reward of null")
    if not _is_number(reward):
        raise ValueError(f'it printed {{"reward": {reward!r}}}: a number or null is a reward')
    if success is not None and not isinstance(success, bool):
        raise ValueError(f'it printed {{"success": {success!r}}}: write true or false')
    metrics = found.get("metrics") or {}
    if not isinstance(metrics, dict) or not all(map(_is_number, metrics.values())):
        raise ValueError(f'it printed {{"metrics": {metrics!r:.80}}}: give an object of numbers')
    values = {name: float(value) for name, value in metrics.items()}
    return Outcome.scored(float(reward), success=success, metrics=values)


def _is_number(value: object) -> bool:
    return isinstance(value, (bool, int, float))


def _json_object(line: str) -> dict[str, Any] | None:
    line = line.strip()
    if not (line.startswith("{") and line.endswith("}")):
        return None
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(line)
        return found if isinstance(found, dict) else None
    return None


def _addresses(context: EpisodeContext) -> Mapping[str, str]:
    """The addresses and the key by which a warm command finds the session of the episode."""
    return {
        "openai_base_url": context.base_url,
        "anthropic_base_url": context.base_url.removesuffix("/v1"),
        "api_key": context.api_key,
    }


def _environment(context: EpisodeContext, base_url: str) -> dict[str, str]:
    """The environment variables of a command. They keep a session at a loopback address from going through a proxy."""
    env = context.client_variables(base_url)
    host = urlsplit(base_url).hostname or ""
    return env | _no_proxy(host) if _is_loopback(host) else env


def _no_proxy(*hosts: str) -> dict[str, str]:
    """Variables that exempt these hosts from a proxy: to the proxy, a loopback address is its own machine."""
    names = ("NO_PROXY", "no_proxy")
    return {name: ",".join(filter(None, (os.environ.get(name), *hosts))) for name in names}


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _last_line(text: str) -> str:
    """The last line that names an error, else the last line with text: a stack trace may begin or end with its error."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line and not line.startswith("at ")]
    return (errors or lines)[-1][:_QUOTED_CHARACTERS]
