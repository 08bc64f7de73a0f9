"""Rewards and worlds whose packages this environment cannot have run in environments of their own, side by side."""

import asyncio
import re
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest

from areal_sdk.agent import AgentLike
from areal_sdk.config import parse_config
from areal_sdk.errors import ConfigError, RewardError
from areal_sdk.loop.plan.isolated import isolated_environment, isolated_reward
from areal_sdk.loop.plan.program import load_program
from areal_sdk.plugins import Plugins
from areal_sdk.process import environments
from areal_sdk.process.memory import machine_mb
from areal_sdk.rollout.agents.workers.pool import AgentPool, isolated_memory, playable
from areal_sdk.rollout.judging.reward_pool import RewardPool
from areal_sdk.telemetry import Ledger
from areal_sdk.telemetry.ledger import DropReason
from areal_sdk.testing import make_episode, run_agent
from areal_sdk.types import Episode, Task
from tests.docs.blocks import ROOT
from tests.loop.runs import SCRIPTED, SMALL, finish, run_dir, start_command

PLUGIN = """
    import asyncio
    import os
    import time
    from areal_sdk import Environment, StepResult, hookimpl
    import {package}

    def which_{number}(episode, *, plus: float = 0.0) -> float:
        if episode.final_text == "crash":
            os._exit(3)
        if episode.final_text == "leak":
            leak()
        return float({package}.__version__.split(".")[0]) + plus

    def leak():
        kept = []
        while True:
            kept.append(b"x" * (4 << 20))
            time.sleep(0.01)

    class World(Environment):
        def __init__(self, *, plus: float = 0.0) -> None:
            self.plus = plus

        async def reset(self, task):
            self.leaks = task.data["question"] == "leak"
            return [{{"role": "user", "content": task.data["question"]}}]

        async def step(self, message):
            if message["content"] == "crash":
                os._exit(3)
            if message["content"] == "hang":
                time.sleep(600)
            if message["content"] == "leak" or self.leaks:
                leak()
            if message["content"] == "wait":
                await asyncio.sleep(5)
            if message["content"] == "fill":
                raise MemoryError("no room")
            return StepResult(reward=which_{number}(Said(), plus=self.plus), done=True)

    class Said:
        final_text = ""

    @hookimpl
    def register_environments(register):
        register("world_{number}", World)

    @hookimpl
    def register_rewards(register):
        register("which_{number}", which_{number})
"""


def plugin_code(number: int, package: str) -> str:
    return textwrap.dedent(PLUGIN.format(number=number, package=package))


@pytest.fixture
def ready_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Requirements whose environments are there already: each has a plugin and its version of a package."""
    monkeypatch.setenv(environments.DIRECTORY_VARIABLE, str(tmp_path / "environments"))
    requirements = []

    def make(directory: Path, requirement: str, packages: list[str]) -> None:
        number = int(requirement.partition("==")[2])
        site = directory / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
        environments.begin_environment(directory, "--without-pip")
        here = [path for path in sys.path if path.endswith("site-packages")]
        (site / "here.pth").write_text("\n".join([*here, str(ROOT)]))
        (site / "pinned_package.py").write_text(f"__version__ = '{number}.5'")
        (site / f"plugin_{number}.py").write_text(plugin_code(number, "pinned_package"))
        info = site / f"plugin_{number}-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: plugin-{number}\nVersion: 1\n"
        )
        (info / "entry_points.txt").write_text(f"[areal_sdk]\nplugin = plugin_{number}\n")
        (directory / environments._DONE).write_text(requirement)

    monkeypatch.setattr(environments, "_make", make)
    for number in (1, 2):
        requirements.append(f"pinning-plugin=={number}")
    return requirements


async def test_two_versions_of_a_package_serve_one_run(
    ready_made: list[str], tmp_path: Path
) -> None:
    assert find_spec("pinned_package") is None
    specs = [
        isolated_reward(f"which_{n}", requirement, {"plus": n / 10}, Plugins(), weight=1.0)
        for n, requirement in enumerate(ready_made, start=1)
    ]
    async with RewardPool(specs, log_dir=tmp_path, size=1) as pool:
        outcome = await pool.score(make_episode("hello"))
        assert outcome.reward == pytest.approx(1.1 + 2.2)
        with pytest.raises(RewardError, match="'which_1' took its worker down"):
            await pool.score(make_episode("crash"))
        assert (await pool.score(make_episode("hello"))).reward == pytest.approx(3.3)


async def play(agent: AgentLike, reply: str) -> Episode:
    return await run_agent(agent, Task("t", {"question": "go"}), engine=[reply])


async def test_worlds_with_two_versions_of_a_package_are_played_side_by_side(
    ready_made: list[str], tmp_path: Path
) -> None:
    assert find_spec("pinned_package") is None
    for number, requirement in enumerate(ready_made, start=1):
        name = f"world_{number}"
        options = {"isolated": requirement, "plus": 0.5}
        config = parse_config({"env": {"name": name, name: options}})
        program = load_program(config, plugins=Plugins())
        pool = playable(program.agent, config.rollout, log_dir=tmp_path / name)
        assert isinstance(pool, AgentPool)
        async with pool:
            assert (await play(pool, "hello")).reward == number + 0.5


async def test_a_crash_a_hang_and_an_error_of_a_world_end_one_episode_each(
    ready_made: list[str], tmp_path: Path
) -> None:
    spec = isolated_environment("world_1", ready_made[0], {}, Plugins(), step_timeout_s=30.0)
    section = parse_config({"rollout": {"tool_timeout_s": 1.0}}).rollout
    pool = playable(spec, section, log_dir=tmp_path)
    assert isinstance(pool, AgentPool)
    async with pool:
        for reply, told in (("crash", "exited with code 3"), ("hang", "1 s"), ("fill", "no room")):
            failed = await play(pool, reply)
            assert failed.reward is None
            assert told in failed.outcome.message, failed.outcome
            assert (await play(pool, "hello")).reward == 1.0
        assert pool.num_started == 3


LIMITED = parse_config({"rollout": {"isolated_memory_mb": 300}}).rollout
LIMIT = r"memory limit of 300 MB \(rollout.isolated_memory_mb\)"


async def test_a_world_that_leaks_fails_at_its_limit_and_its_neighbours_are_whole(
    ready_made: list[str], tmp_path: Path
) -> None:
    spec = isolated_environment("world_1", ready_made[0], {}, Plugins(), step_timeout_s=60.0)
    pool = playable(spec, LIMITED, log_dir=tmp_path)
    assert isinstance(pool, AgentPool)
    async with pool:
        leaks, waits = await asyncio.gather(play(pool, "leak"), play(pool, "wait"))
        assert leaks.outcome.error == "environment"
        assert re.search(
            rf"environment world_1 took its worker down: .*{LIMIT}", str(leaks.outcome)
        )
        assert waits.outcome.error == "infrastructure", "a run tries it again"
        assert (await play(pool, "hello")).reward == 1.0
        assert pool.num_started == 2


async def test_a_reward_that_leaks_fails_at_its_limit(
    ready_made: list[str], tmp_path: Path
) -> None:
    spec = isolated_reward("which_1", ready_made[0], {}, Plugins(), weight=1.0)
    limit = isolated_memory(LIMITED, 1)
    async with RewardPool([spec], log_dir=tmp_path, size=1, isolated_memory=limit) as pool:
        with pytest.raises(RewardError, match=f"'which_1' took its worker down: .*{LIMIT}"):
            await pool.score(make_episode("leak"))
        assert (await pool.score(make_episode("hello"))).reward == 1.0


def test_a_run_goes_on_past_a_world_that_leaks(ready_made: list[str], tmp_path: Path) -> None:
    environments.environment_for(ready_made[0])  # the run finds it
    tasks = tmp_path / "tasks.jsonl"
    words = ("leak", *"abcdefghijk")
    tasks.write_text("".join(f'{{"question": "{word}"}}\n' for word in words))
    settings = SMALL | {"run.dir": tmp_path, "run.name": "run", "run.steps": 2}
    settings |= {"rollout.shuffle": "false", "rollout.batch": 8}
    settings |= {"env.world_1.isolated": ready_made[0], "rollout.isolated_memory_mb": 300}
    output = finish(
        start_command(
            *("train", "--env", "world_1", "--tasks", str(tasks), *SCRIPTED),
            *(
                part
                for key, value in settings.items()
                for part in ("--set", f"{key}={value}".lower())
            ),
        )
    )
    assert re.search(LIMIT, output)
    assert "ended: steps" in output
    run = run_dir(tmp_path)
    ledger = Ledger.restore(run.read_ledger() or {})
    assert ledger.dropped[DropReason.ERROR_ENVIRONMENT] > 0
    trained = [episode.id for episode in run.list_episodes() if episode.step is not None]
    assert trained
    assert not [i for i in trained if i.startswith("tasks-1.")], "that one leaks"


def test_unless_it_is_set_the_workers_share_half_of_the_machine() -> None:
    section = parse_config({}).rollout
    whole, half = (isolated_memory(section, number) for number in (1, 2))
    assert whole is not None
    assert half is not None
    assert (whole.mb, half.mb) == ((machine_mb() or 0) // 2, (machine_mb() or 0) // 4)


def test_a_wrong_option_or_name_is_an_error_before_the_run(ready_made: list[str]) -> None:
    with pytest.raises(
        ConfigError, match=r"in the virtual environment of reward 'which_1': .*'pluss'"
    ):
        isolated_reward("which_1", ready_made[0], {"pluss": 1.0}, Plugins(), weight=1.0)
    with pytest.raises(ConfigError, match="unknown reward 'which_2'"):
        isolated_reward("which_2", ready_made[0], {}, Plugins(), weight=1.0)
    with pytest.raises(
        ConfigError, match=r"in the virtual environment of environment 'world_1': .*'pluss'"
    ):
        isolated_environment(
            "world_1", ready_made[0], {"pluss": 1.0}, Plugins(), step_timeout_s=1.0
        )


def test_what_pip_cannot_install_is_an_error_with_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environments.DIRECTORY_VARIABLE, str(tmp_path))
    with pytest.raises(ConfigError, match=r"isolated = 'not a requirement!'.*Invalid requirement"):
        isolated_reward("polite", "not a requirement!", {}, Plugins(), weight=1.0)
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]


def test_a_file_that_was_built_again_gets_an_environment_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environments.DIRECTORY_VARIABLE, str(tmp_path / "environments"))
    made: list[Path] = []

    def make(directory: Path, requirement: str, packages: list[str]) -> None:
        directory.mkdir(parents=True)
        (directory / environments._DONE).touch()
        made.append(directory)

    monkeypatch.setattr(environments, "_make", make)  # pip would take seconds
    wheel = tmp_path / "polite-1.0-py3-none-any.whl"
    for content in (b"first", b"first", b"second"):
        wheel.write_bytes(content)
        environments.environment_for(str(wheel))
    assert len(made) == 2


def test_true_means_what_is_installed_under_the_name() -> None:
    with pytest.raises(
        ConfigError, match="no installed plugin registers it: write the requirement"
    ):
        isolated_reward("polite", True, {}, Plugins(), weight=1.0)
    assert Path(environments.requirement_of("areal-sdk")).samefile(ROOT)


@pytest.mark.slow
async def test_two_majors_of_openai_serve_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environments.DIRECTORY_VARIABLE, str(tmp_path / "environments"))
    specs = []
    for major in (1, 2):
        project = tmp_path / f"openai-{major}-plugin"
        project.mkdir()
        (project / f"plugin_{major}.py").write_text(plugin_code(major, "openai"))
        (project / "pyproject.toml").write_text(
            f"""
            [build-system]
            requires = ["hatchling"]
            build-backend = "hatchling.build"
            [project]
            name = "plugin-{major}"
            version = "1"
            dependencies = ["areal-sdk", "openai=={major}.*"]
            [project.entry-points.areal_sdk]
            plugin = "plugin_{major}"
            """
        )
        specs.append(isolated_reward(f"which_{major}", str(project), {}, Plugins(), weight=1.0))
    async with RewardPool(specs, log_dir=tmp_path, size=1) as pool:
        assert (await pool.score(make_episode("hello"))).reward == 3.0
