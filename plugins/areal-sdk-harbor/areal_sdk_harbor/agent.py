"""`Harbor`: plays a task with a shell tool, or with a command in the task's sandbox, and asks the task's verifier."""

import asyncio
import contextlib
import json
import shlex
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from areal_sdk import (
    ArealError,
    ConfigError,
    EpisodeContext,
    Message,
    Outcome,
    RolloutWorkflow,
    Task,
)
from areal_sdk.environment import read_arguments
from areal_sdk.errors import AgentError
from areal_sdk.types import Tool
from areal_sdk_harbor.control import Controls
from areal_sdk_harbor.definition import Definition, read_definition
from areal_sdk_harbor.image import RefusedError
from areal_sdk_harbor.machine import CommandEnd, Machine, MachineEndedError
from areal_sdk_harbor.relay import relayed
from areal_sdk_harbor.tree import Tree
from areal_sdk_harbor.trial import Room, Verdict, ready, verify
from areal_sdk_sandbox import INNER_ADDRESS, command_files, why_not_isolated

SHELL = "shell"
SYSTEM = (
    "You work in a Linux sandbox without a network. Call the tool `shell` to run commands. When the task is done, "
    "answer without a call."
)
_LIMITS = ("context_length_exceeded", "episode_limit_reached")
"""Codes of refusals that end an episode: there is no room for another turn."""
_QUOTED = 500
_TASK_FILE = "/logs/agent/task.json"


class Harbor(RolloutWorkflow):
    """Plays tasks in Harbor's format. The reward is what the task's verifier writes after the agent has ended.

    command: an agent of your own, which runs in the task's sandbox and asks the model at OPENAI_BASE_URL. Without one,
        the model gets a shell tool.
    readable: files and directories outside that the command needs, besides those that it names.
    system: the system prompt of the shell tool's agent. Empty: none.
    command_timeout_s: deadline of one call of the shell tool.
    max_characters: what the model sees of the output of one call: its end.
    memory_mb, processes, disk_mb: limits of the sandbox; of each of its directories the last. A task that asks for less
        memory gets less.
    """

    def __init__(
        self,
        *,
        command: str = "",
        readable: tuple[str, ...] = (),
        system: str = SYSTEM,
        command_timeout_s: float = 30.0,
        max_characters: int = 4000,
        memory_mb: int = 2048,
        processes: int = 64,
        disk_mb: int = 256,
    ) -> None:
        if problem := why_not_isolated():
            raise ConfigError(f"the agent harbor runs programs of the model: {problem}")
        self._words, self._seen = (
            command_files(shlex.split(command), readable) if command else ([], [])
        )
        self._system = system
        self._command_timeout_s = command_timeout_s
        self._max_characters = max_characters
        self._room = Room(memory_mb, processes, disk_mb)
        self._controls = Controls(self._room)

    async def run_episode(self, task: Task, context: EpisodeContext) -> Outcome:
        played = definition_of(task)
        if why := self._controls.known(played):
            return _abstained(played, why)
        async with contextlib.AsyncExitStack() as stack:
            if self._words:
                relay = await stack.enter_async_context(relayed(context.base_url))
                opened = ready(played, self._room, readable=self._seen, reaches=relay.address)
            else:
                relay, opened = None, ready(played, self._room)
            machine = await stack.enter_async_context(opened)
            try:
                if relay is None:
                    await self._use_tool(machine, played, context)
                else:
                    await self._run_command(machine, played, task, context)
                    await relay.close()  # what runs from now on asks the model nothing
                verdict = await verify(machine, played)
            except MachineEndedError as exc:
                verdict = Verdict(None, why=str(exc))
        return await self._outcome(verdict, played)

    async def _use_tool(
        self, machine: Machine, played: Definition, context: EpisodeContext
    ) -> None:
        """Ask the model and carry out its calls, until it answers without one or a limit ends it."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + played.agent_timeout_s
        tools = (tool_of(played.image.workdir),)
        messages: list[Message] = [{"role": "user", "content": played.instruction}]
        if self._system:
            messages.insert(0, {"role": "system", "content": self._system})
        while (left_s := deadline - clock()) > 0:
            try:
                async with asyncio.timeout(left_s):
                    turn = await context.generate(messages, tools=tools)
            except TimeoutError:
                return
            except ArealError as refusal:
                if getattr(refusal, "code", None) not in _LIMITS:
                    raise
                return
            if not (calls := turn.message.get("tool_calls")):
                return
            messages.append(turn.message)
            for call in calls:
                left_s = max(1.0, min(self._command_timeout_s, deadline - clock()))
                said = await self._answer(call, machine, played, left_s)
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": said})

    async def _answer(
        self, call: Message, machine: Machine, played: Definition, timeout_s: float
    ) -> str:
        """The answer to a call, also to a malformed one."""
        given = read_arguments(call)
        command = given.get("command") if given else None
        if call["function"].get("name") != SHELL or not isinstance(command, str):
            return f'error: call {SHELL} with {{"command": "..."}}'
        if "\0" in command:
            return "error: a command has no zero bytes"
        command = command.encode(errors="replace").decode()
        end = await machine.run(
            ["bash", "-c", command],
            cwd=played.image.workdir,
            env=played.env,
            timeout_s=timeout_s,
        )
        return told(end, self._max_characters, timeout_s)

    async def _run_command(
        self, machine: Machine, played: Definition, task: Task, context: EpisodeContext
    ) -> None:
        """Run the command to its end, or to the task's deadline for agents. `AgentError`: it failed by itself."""
        asked = replace(task, data={"instruction": played.instruction})
        order = json.dumps(context.order(asked)).encode() + b"\n"
        await machine.put(
            str(Path(_TASK_FILE).parent), Tree(files=((Path(_TASK_FILE).name, 0o644, order),))
        )
        end = await machine.run(
            ["bash", "-c", 'exec "$@" < "$AREAL_SDK_TASK"', "bash", *self._words],
            cwd=played.image.workdir,
            env={**played.env, **_variables(context)},
            timeout_s=played.agent_timeout_s,
        )
        if end.code and not end.is_late:
            raise AgentError(
                f"command {shlex.join(self._words)!r}: {told(end, _QUOTED, 0.0)} (in a sandbox: it sees the files that "
                "it names, and those of agent.readable)"
            )

    async def _outcome(self, verdict: Verdict, played: Definition) -> Outcome:
        """The outcome of a verdict. A missing one is the agent's fault if the verifier gives one without the agent."""
        if verdict.reward is not None:
            success = verdict.reward >= 1.0
            return Outcome.scored(verdict.reward, success=success, metrics=verdict.metrics)
        if why := await self._controls.why_broken(played):
            return _abstained(played, why)
        failed = Outcome.scored(0.0, success=False, metrics={"broke_verifier": 1.0})
        return replace(failed, message=f"after the agent there was no verdict: {verdict.why}")


def definition_of(task: Task) -> Definition:
    """The definition that a task of the dataset `harbor` names."""
    if "path" not in task.data:
        known = ", ".join(sorted(task.data)) or "nothing"
        raise ConfigError(
            f"task {task.id!r} has no data['path'], it has: {known}: play tasks of the dataset harbor"
        )
    try:
        return read_definition(Path(str(task.data["path"])))
    except RefusedError as exc:
        raise ConfigError(f"task {task.id}: {exc}") from None


def tool_of(workdir: str) -> Tool:
    """The shell tool, as it is offered to the model."""
    return {
        "type": "function",
        "function": {
            "name": SHELL,
            "description": f"Run a command with bash, in {workdir}. Returns its output. Files stay, `cd` does not.",
            "parameters": {
                "type": "object",
                "properties": {"command": {"type": "string"}},
                "required": ["command"],
            },
        },
    }


def told(end: CommandEnd, most: int, timeout_s: float) -> str:
    """The output of a command in words for a model: its end, and how it ended if it failed."""
    said = end.output.strip()
    if len(said) > most or end.written > len(end.output.encode()):
        said = f"[the end of {end.written} bytes]\n{said[-most:]}"
    if end.is_late:
        how = f"ended after {timeout_s:g} s"
    else:
        how = f"exit code {end.code}" if end.code else "" if said else "it wrote nothing"
    return "\n".join(filter(None, (said, how and f"[{how}]")))


def _abstained(played: Definition, why: str) -> Outcome:
    return Outcome.abstained(f"the verifier of task {played.name} is broken: {why}")


def _variables(context: EpisodeContext) -> dict[str, str]:
    """The variables by which clients find the session of the episode, inside the sandbox."""
    base_url = urlsplit(context.base_url)._replace(netloc=INNER_ADDRESS).geturl()
    return context.client_variables(base_url) | {"AREAL_SDK_TASK": _TASK_FILE}
