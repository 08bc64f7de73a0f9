"""`areal-sdk plugins check`: bad plugins are refused or contained, with a message that names the cure."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from areal_sdk.cli.plugins import plugins as command
from areal_sdk.errors import ArealError, ConfigError
from areal_sdk.testing import ConformanceError
from areal_sdk.testing.items import check_item
from areal_sdk.testing.plugins import items_of, judge_plugin, load_suspect
from tests.plugins.conftest import Install
from tests.plugins.sources import HEAD, HOOKS

BAD_LOADS = {
    "an import of what is not there": (
        "import no_such_package",
        "No module named 'no_such_package'",
    ),
    "an exit at import": ("raise SystemExit(3)", "SystemExit: 3"),
    "a misspelt hook": (
        "@hookimpl\ndef register_reward(register): ...",
        "did you mean 'register_rewards'",
    ),
    "a hook that is not marked": ("def register_rewards(register): ...", "@areal_sdk.hookimpl"),
    "an async hook": ("@hookimpl\nasync def on_step(step): ...", "hooks are plain functions"),
    "an unknown argument of a hook": (
        "@hookimpl\ndef on_step(step, loss): ...",
        "never given 'loss', only: step, metrics",
    ),
    "one name twice": (
        "@hookimpl\ndef register_rewards(register):\n    register('a', reward)\n    register('a', reward)",
        "'a' is registered twice",
    ),
    "a name that no flag can hold": (
        "@hookimpl\ndef register_rewards(register): register('my reward', reward)",
        "use letters, digits",
    ),
    "nothing at all": ("", "brings nothing and observes nothing"),
    "an observer that observes nothing": (
        "class Watch: pass\n@hookimpl\ndef register_observers(register): register('watch', Watch)",
        "observes nothing: give it methods that observe, on_run_start",
    ),
    "an observer with a misspelt hook": (
        "class Watch:\n    @hookimpl\n    def on_steps(self, step): ...\n"
        "@hookimpl\ndef register_observers(register): register('watch', Watch)",
        "did you mean 'on_step'",
    ),
    "an option called weight": (
        "def heavy(episode, *, weight: float = 1.0): return weight\n"
        "@hookimpl\ndef register_rewards(register): register('heavy', heavy)",
        "called 'weight'",
    ),
}

BAD_ITEMS = {
    "a reward that raises": (
        "def reward(episode): return 1 / len(episode.final_text)",
        "a bad answer deserves a low reward",
    ),
    "a reward that is not a number": (
        "def reward(episode): return float('nan')",
        "must be a finite number",
    ),
    "a reward that returns text": ("def reward(episode): return 'good'", "returns a number"),
    "a reward by chance": (
        "def reward(episode): return next(COUNT)",
        "gave one episode two verdicts",
    ),
    "a reward that no process can load": (
        "reward = lambda episode: 1.0",
        "define it at the top level of a .py file",
    ),
    "a reward with an option that must be set": (
        "def reward(episode, *, word: str): return 1.0",
        "[reward.reward] needs word (str)",
    ),
    "an agent with an option that must be set": (
        "class agent:\n"
        "    def __init__(self, *, url: str): pass\n"
        "    async def run(self, task, context): return 0.0",
        "to check it, give --set agent.url=VALUE",
    ),
    "a reference that leads nowhere": ("reward = 'no_such_module:f'", "no_such_module"),
    "tasks that are not tasks": (
        "def tasks(split): yield {'question': '?'}",
        "yield areal_sdk.Task(...)",
    ),
    "two tasks of one name": (
        "def tasks(split): yield Task('a', {}); yield Task('a', {'n': 1})",
        "two tasks have the id 'a'",
    ),
    "other tasks each time": (
        "def tasks(split): yield Task(f'{split}-{next(COUNT)}', {'answer': '1'})",
        "seed its randomness",
    ),
    "held-out tasks that are trained on": (
        "def tasks(split): yield Task('a', {'question': '?', 'answer': '1'})",
        "is in both splits",
    ),
    "tasks that hold objects": (
        "def tasks(split): yield Task(split, {'question': '?', 'f': print})",
        "keep to plain values",
    ),
    "an environment that shows the answer": (
        "class World(World):\n"
        "    async def reset(self, task):\n"
        "        self.left = 2\n"
        "        return [{'role': 'user', 'content': str(dict(task.data))}]",
        "the model would learn to copy it",
    ),
    "an environment that starts by chance": (
        "class World(World):\n"
        "    async def reset(self, task):\n"
        "        self.left = 2\n"
        "        return [{'role': 'user', 'content': str(next(COUNT))}]",
        "derive randomness from task.data",
    ),
    "an environment with state on the class": (
        "class World(World):\n"
        "    said = []\n"
        "    async def reset(self, task):\n"
        "        self.said.clear()\n"
        "        return await super().reset(task)\n"
        "    async def step(self, message):\n"
        "        await asyncio.sleep(0)\n"
        "        self.said.append(1)\n"
        "        result = await super().step(message)\n"
        "        content = str(len(self.said))\n"
        "        return StepResult([*result.messages, {'role': 'user', 'content': content}],\n"
        "                          reward=result.reward, done=result.done)",
        "keep its state on self",
    ),
    "an environment that raises at what a model says": (
        "class World(World):\n"
        "    async def step(self, message):\n"
        "        return StepResult(reward=float(message['content']), done=True)",
        "what the model says is data",
    ),
    "an environment that leaves calls open": (
        "class World(World):\n"
        "    async def step(self, message):\n"
        "        return StepResult([{'role': 'user', 'content': 'go on'}])",
        "calls without an answer",
    ),
    "an environment that does not stop": (
        "class World(World):\n"
        "    async def step(self, message):\n"
        "        try:\n"
        "            await asyncio.sleep(0.01)\n"
        "        except asyncio.CancelledError:\n"
        "            await asyncio.sleep(5)\n"
        "        return await super().step(message)",
        "goes on after it was cancelled",
    ),
    "an agent that raises at what a model says": (
        "async def agent(task, context):\n"
        "    turn = await context.generate([{'role': 'user', 'content': '?'}])\n"
        "    return float(turn.text)",
        "give it a low reward instead of raising",
    ),
    "an agent that hides a fault": (
        "async def agent(task, context):\n    return 0.0",
        "must not look like an answer",
    ),
}


async def first_problem(install: Install, source: str) -> str:
    """The first problem of the plugin, in this process."""
    install("areal-sdk-bad", source)
    plugins = load_suspect("areal-sdk-bad")
    for item in items_of(plugins):
        try:
            await check_item(plugins, item.kind, item.name, {})
        except ArealError as exc:
            return str(exc)
    raise AssertionError("it passed")


@pytest.mark.parametrize(("source", "message"), BAD_LOADS.values(), ids=BAD_LOADS)
def test_a_plugin_that_cannot_be_used_says_why(source: str, message: str, install: Install) -> None:
    install("areal-sdk-bad", HEAD + source)
    with pytest.raises(ConformanceError) as caught:
        load_suspect("areal-sdk-bad")
    assert message in str(caught.value)


@pytest.mark.parametrize(("source", "message"), BAD_ITEMS.values(), ids=BAD_ITEMS)
async def test_a_broken_contract_is_named_with_its_cure(
    source: str, message: str, install: Install
) -> None:
    assert message in await first_problem(install, HEAD + source + HOOKS)


CRASHES = """
import os, time
def exits(episode): os._exit(7)
def hangs(episode): time.sleep(600)
@hookimpl
def register_rewards(register):
    for name, f in (("exits", exits), ("hangs", hangs), ("reward", reward)): register(name, f)
"""


async def test_a_crash_and_a_hang_are_named_and_leave_the_neighbours_whole(
    install: Install,
) -> None:
    install("areal-sdk-crashes", HEAD + CRASHES)
    verdicts = await judge_plugin("areal-sdk-crashes", options={}, timeout_s=10.0)
    problems = {verdict.what: verdict.problem for verdict in verdicts}
    assert "exited with code 7" in problems["reward 'exits'"]
    assert "no answer within 10 s" in problems["reward 'hangs'"]
    assert problems["reward 'reward'"] == problems["plugin areal-sdk-crashes"] == ""


def test_the_command_takes_tasks_of_any_file(install: Install, tmp_path: Path) -> None:
    reads_gold = "def reward(episode): return float(episode.task.data['gold'] == '4')\n"
    install("areal-sdk-fine", HEAD + reads_gold + HOOKS)
    tasks = tmp_path / "tasks.csv"
    tasks.write_text("question,gold\n2+2?,4\n")
    run = CliRunner().invoke(command, ["check", "areal-sdk-fine", "--json", "--tasks", str(tasks)])
    verdicts = json.loads(run.stdout)["areal-sdk-fine"]
    assert {v["what"]: v["problem"] for v in verdicts}["reward 'reward'"] == ""
    absent = str(tmp_path / "absent.csv")
    with pytest.raises(ConfigError, match=r"no such file of tasks: .*absent\.csv"):
        CliRunner().invoke(
            command, ["check", "areal-sdk-fine", "--tasks", absent], catch_exceptions=False
        )


def test_the_command_checks_what_is_installed(install: Install, tmp_path: Path) -> None:
    install("areal-sdk-fine", HEAD + HOOKS)
    run = CliRunner().invoke(command, ["check", "areal-sdk-fine", "--json"])
    assert run.exit_code == 0, run.output
    verdicts = json.loads(run.stdout)["areal-sdk-fine"]
    assert [verdict["problem"] for verdict in verdicts] == [""] * 5
    with pytest.raises(
        ConfigError, match=r"no installed plugin 'areal-sdk-fin'; installed: .*fine"
    ):
        CliRunner().invoke(command, ["check", "areal-sdk-fin"], catch_exceptions=False)
