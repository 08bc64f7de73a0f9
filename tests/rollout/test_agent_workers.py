"""Agents in real worker processes against a real gateway: the same episodes, and contained failures."""

import asyncio
import logging
import os
import re
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from areal_sdk.engine import GenerateChunk, GenerateRequest
from areal_sdk.errors import ConfigError
from areal_sdk.gateway import Gateway, SessionLimits
from areal_sdk.gateway.tokens.renderer import Renderer
from areal_sdk.rollout.agents.runner import EpisodeRunner
from areal_sdk.rollout.agents.spec import AgentSpec
from areal_sdk.rollout.agents.workers.pool import AgentPool
from areal_sdk.rollout.agents.workers.session_rpc import pack_result, unpack_result
from areal_sdk.rollout.tasks import EpisodeRequest
from areal_sdk.testing import Fault, Reply, ScriptedEngine
from areal_sdk.types import Episode, ErrorKind, Outcome, OutcomeKind, Task
from tests.rollout import sample_agents
from tests.toolbox.processes import is_alive
from tests.toolbox.waiting import until

TASK = Task("task", {"question": "2+2?", "answer": "4"})
PATIENCE_S = 60.0
"""Seconds for things that take milliseconds, on a machine that is busy with others."""


class CountingEngine(ScriptedEngine):
    """Knows how many requests it is working on."""

    num_running = 0

    async def stream(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        self.num_running += 1
        try:
            async with aclosing(super().stream(request)) as chunks:  # type: ignore[type-var]
                async for chunk in chunks:
                    yield chunk
        finally:
            self.num_running -= 1


class Play:
    """A pool on a gateway, and a runner for it."""

    def __init__(
        self, pool: AgentPool, gateway: Gateway, engine: CountingEngine, runner: EpisodeRunner
    ) -> None:
        self.pool = pool
        self.gateway = gateway
        self._engine = engine
        self._runner = runner
        self._num_started = 0

    async def __call__(self, **data: Any) -> Episode:
        self._num_started += 1
        task = Task("task", {**TASK.data, **data})
        return await self._runner.run(EpisodeRequest(f"episode-{self._num_started}", task))

    @property
    def num_running(self) -> int:
        """Turns that the engine is sampling."""
        return self._engine.num_running

    async def beside(self, guest: "asyncio.Task[Any]", path: Path) -> None:
        """Return once `guest` has touched `path`."""
        await until(path.exists, guest)


@asynccontextmanager
async def playing(
    agent: object,
    model_dir: Path,
    log_dir: Path,
    *,
    script: Any = "4",
    size: int = 1,
    block_limit_s: float = PATIENCE_S,
    spec: dict[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[Play]:
    options.setdefault("retry_delay_s", 0.001)
    spec = {"name": getattr(agent, "__name__", "agent"), **(spec or {})}
    engine = CountingEngine(script, model_dir=model_dir)
    gateway = Gateway(engine, renderer=Renderer.load(model_dir), model_name="tiny")
    await gateway.start()
    try:
        async with (
            AgentPool(
                AgentSpec.of(agent, **spec),
                size=size,
                log_dir=log_dir,
                block_limit_s=block_limit_s,
            ) as pool,
            EpisodeRunner(pool, gateway=gateway, **options) as runner,
        ):
            yield Play(pool, gateway, engine, runner)
        assert len(gateway.sessions) == 0, "a session was left open"
    finally:
        await gateway.aclose()


@pytest.mark.parametrize(
    ("agent", "options", "reward"),
    [
        (sample_agents.Solver, {"bonus": 0.25}, 1.25),
        (sample_agents.function_agent, {"worth": 0.5}, 0.5),
        (sample_agents.plain_agent, {}, 1.0),
        (sample_agents.solver, {}, 1.5),
        (sample_agents.ArealRun, {}, 0.25),
        (sample_agents.Echo, {"worth": 2.0}, 4.0),
        (sample_agents.BothDoors, {}, 0.5),
    ],
)
async def test_whatever_counts_as_an_agent_plays_in_a_worker(
    agent: object, options: dict[str, Any], reward: float, model_dir: Path, tmp_path: Path
) -> None:
    async with playing(agent, model_dir, tmp_path, spec={"options": options}) as play:
        episode = await play()
    assert episode.outcome.message == ""
    assert episode.reward == reward
    assert episode.task.data == TASK.data
    assert all(turn.text == "4" and turn.versions == (0, 0) for turn in episode.turns)
    if agent is sample_agents.Echo:
        assert episode.outcome.turn_rewards == (2.0, 2.0)
    if agent is sample_agents.BothDoors:
        assert [message["content"] for message in episode.messages] == ["second", "4"]


async def test_the_context_is_that_of_an_inline_agent(model_dir: Path, tmp_path: Path) -> None:
    agent = sample_agents.tells_its_context
    async with playing(agent, model_dir, tmp_path, split="eval", seed=7) as play:
        remote = (await play()).outcome.message.split()
        runner = EpisodeRunner(agent, gateway=play.gateway, split="eval", seed=7)
        async with runner:
            inline = (await runner.run(EpisodeRequest("episode-1", TASK))).outcome.message.split()
        assert remote[:-1] == inline[:-1]
        assert int(remote[-1]) == play.pool.pids["agent-0"] != int(inline[-1])


async def test_episodes_that_reach_a_worker_together_begin_one_after_the_other(
    model_dir: Path, tmp_path: Path
) -> None:
    """A first step builds a client, for tens of ms: eight in one round would hold everybody up."""
    holding, go = tmp_path / "holding", tmp_path / "go"
    data = {"holding": str(holding), "go": str(go), "episodes": 9}
    async with playing(sample_agents.Burst, model_dir, tmp_path) as play:
        first = asyncio.create_task(play(**data))
        await play.beside(first, holding)
        others = [asyncio.create_task(play(**data)) for _ in range(8)]
        (worker,) = play.pool._workers
        await until(lambda: len(worker.aboard) == 9, first, *others)
        go.touch()
        episodes = await asyncio.gather(first, *others)
        rounds = [episode.outcome.metrics["round"] for episode in episodes]
        assert len(set(rounds)) == 9, rounds


async def test_many_episodes_share_the_workers(model_dir: Path, tmp_path: Path) -> None:
    async with playing(sample_agents.Solver, model_dir, tmp_path, size=2) as play:
        episodes = await asyncio.gather(*(play() for _ in range(40)))
        assert [episode.reward for episode in episodes] == [1.0] * 40
        assert len(play.pool.pids) == 2
        assert play.pool.num_started == 2


async def test_an_agent_that_raises_is_an_agent_error_and_costs_no_worker(
    model_dir: Path, tmp_path: Path
) -> None:
    name = "agent does_as_told"
    async with playing(sample_agents.does_as_told, model_dir, tmp_path) as play:
        for deed, message in {
            "raise": f"{name}: KeyError: 'no such tool'",
            "raise_half_a_character": f"{name}: ValueError: half ?",
            "exit": "the agent called exit(3)",
            "return_more": (
                f"{name}: ValueError: a reward returns a number, a list with one number per turn, "
                "an Outcome or None, not (1.0, 'good')"
            ),
            "return_text": (
                f"{name}: ValueError: a reward returns a number, a list with one number per turn, "
                "an Outcome or None, not str"
            ),
        }.items():
            outcome = (await play(do=deed)).outcome
            said, _, place = outcome.message.partition(" (sample_agents.py:")
            assert (outcome.error, said) == (ErrorKind.AGENT, message)
            assert bool(place) == ("sample_agents.py" in outcome.trace) == deed.startswith("raise")
        assert (await play(do="read_a_class", question=sample_agents.Question("2+2?"))).reward
        assert play.pool.num_started == 1
    assert "KeyError" in (tmp_path / "agent-0.log").read_text(), "the log has the traceback"


async def test_an_environment_that_reaches_a_limit_is_truncated_not_failed(
    model_dir: Path, tmp_path: Path
) -> None:
    limits = SessionLimits(max_turns=1)
    async with playing(sample_agents.Echo, model_dir, tmp_path, limits=limits) as play:
        episode = await play()
    assert episode.truncated
    assert episode.reward == 1.0


def _read_here_only(pid: int) -> int:
    if os.getpid() != pid:
        raise ValueError("it can be read in the main process only")
    return pid


class ReadableHereOnly:
    def __reduce__(self) -> tuple[Any, ...]:
        return _read_here_only, (os.getpid(),)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (lambda: None, r"task 'task' cannot be sent to a worker .*Task\.data"),
        (
            ReadableHereOnly(),
            r"cannot be read in a worker \(ValueError: .*main process only.*Task\.data",
        ),
    ],
)
async def test_task_data_that_cannot_travel_is_no_error_of_the_agent(
    data: object, message: str, model_dir: Path, tmp_path: Path
) -> None:
    async with playing(sample_agents.plain_agent, model_dir, tmp_path, infra_retries=0) as play:
        outcome = (await play(data=data)).outcome
        assert (await play()).reward, "it cost no worker"
        assert play.pool.num_started == 1
    assert outcome.error is ErrorKind.INFRASTRUCTURE
    assert re.search(message, outcome.message)
    assert "or set rollout.workers = 0" in outcome.message


async def test_an_engine_fault_is_infrastructure_whatever_the_agent_made_of_it(
    model_dir: Path, tmp_path: Path
) -> None:
    script = [Reply(fault=Fault.RAISE), "4", "4"]
    async with playing(sample_agents.Echo, model_dir, tmp_path, script=script) as play:
        episode = await play()
    assert episode.attempt == 1
    assert episode.reward == 2.0


async def test_giving_up_on_a_turn_frees_the_engine(model_dir: Path, tmp_path: Path) -> None:
    script = Reply(fault=Fault.HANG)
    async with playing(sample_agents.does_as_told, model_dir, tmp_path, script=script) as play:
        assert (await play(do="give_up_waiting")).reward == 0.25
        assert play.num_running == 0


async def test_a_deadline_ends_the_episode_and_its_clean_up_runs(
    model_dir: Path, tmp_path: Path
) -> None:
    here = tmp_path / "here"
    async with playing(
        sample_agents.does_as_told, model_dir, tmp_path, episode_timeout_s=5.0
    ) as play:
        outcome = (await play(do="clean_up", here=here)).outcome
        assert outcome.error is ErrorKind.TIMEOUT
        assert "raise rollout.episode_timeout_s" in outcome.message
        await until(here.with_suffix(".cleaned").exists)
        assert (await play()).reward == 1.0
        assert play.pool.num_started == 1


async def test_a_step_of_an_environment_has_its_deadline_in_the_worker(
    model_dir: Path, tmp_path: Path
) -> None:
    spec = {"step_timeout_s": 0.2}
    async with playing(sample_agents.SlowStep, model_dir, tmp_path, spec=spec) as play:
        outcome = (await play()).outcome
    assert outcome.error is ErrorKind.TIMEOUT
    assert "environment SlowStep.step" in outcome.message


@pytest.mark.parametrize("deed", ["crash", pytest.param("segfault", marks=pytest.mark.slow)])
async def test_a_crash_is_the_error_of_the_episode_that_did_it_and_the_others_are_replayed(
    deed: str, model_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    here = tmp_path / "here"
    end = {"crash": "exited with code 7", "segfault": "was killed by SIGSEGV"}[deed]
    async with playing(sample_agents.does_as_told, model_dir, tmp_path, infra_retries=0) as play:
        innocent = asyncio.create_task(play(do="wait", here=here))
        await play.beside(innocent, here)
        guilty = (await play(do=deed)).outcome
        assert guilty.error is ErrorKind.AGENT
        assert "took its worker down: agent-0 (pid" in guilty.message
        assert f"{end}; log: {tmp_path / 'agent-0.log'}" in guilty.message
        outcome = (await innocent).outcome
        assert outcome.error is ErrorKind.INFRASTRUCTURE
        assert "its worker died under it" in outcome.message
        assert (await play()).reward == 1.0, "a fresh worker took its place"
        assert play.pool.num_started == 2
    assert end in caplog.text


async def test_an_innocent_episode_is_the_same_episode_tried_again(
    model_dir: Path, tmp_path: Path
) -> None:
    """The agent crashes its worker unless it was tried before: the neighbour gets its reward."""
    when = tmp_path / "when"
    async with playing(sample_agents.does_as_told, model_dir, tmp_path, script=hold()) as play:
        innocent = asyncio.create_task(play())
        guilty = asyncio.create_task(play(do="crash_when", when=when))
        await until(lambda: play.num_running == 1, innocent)
        when.touch()
        assert (await guilty).outcome.error is ErrorKind.AGENT
        episode = await innocent
        assert (episode.attempt, episode.reward, len(episode.turns)) == (1, 1.0, 1)


def hold() -> Callable[[Any], Any]:
    """The first reply never comes."""
    held: list[object] = []

    def reply(request: object) -> Reply | str:
        held.append(request)
        return Reply(fault=Fault.HANG) if len(held) == 1 else "4"

    return reply


@pytest.mark.slow
async def test_a_crash_whose_author_cannot_be_known_blames_nobody(
    model_dir: Path, tmp_path: Path
) -> None:
    here = tmp_path / "here"
    async with playing(sample_agents.does_as_told, model_dir, tmp_path, infra_retries=0) as play:
        alone = (await play(do="crash_in_a_thread")).outcome
        assert alone.error is ErrorKind.AGENT, "it was the only one there"
        other = asyncio.create_task(play(do="wait", here=here))
        await play.beside(other, here)
        assert (await play(do="crash_in_a_thread")).outcome.error is ErrorKind.INFRASTRUCTURE
        assert (await other).outcome.error is ErrorKind.INFRASTRUCTURE


@pytest.mark.slow
async def test_a_worker_killed_from_outside_is_nobody_s_error(
    model_dir: Path, tmp_path: Path
) -> None:
    here = tmp_path / "here"
    async with playing(sample_agents.does_as_told, model_dir, tmp_path, infra_retries=0) as play:
        episode = asyncio.create_task(play(do="wait", here=here))
        await play.beside(episode, here)
        os.kill(play.pool.pids["agent-0"], signal.SIGKILL)
        outcome = (await episode).outcome
        assert outcome.error is ErrorKind.INFRASTRUCTURE
        assert "was killed by SIGKILL" in outcome.message


@pytest.mark.slow
async def test_exit_in_a_task_of_the_agent_ends_its_worker_not_the_run(
    model_dir: Path, tmp_path: Path
) -> None:
    async with playing(sample_agents.does_as_told, model_dir, tmp_path) as play:
        outcome = (await play(do="exit_in_a_task")).outcome
        assert outcome.error is ErrorKind.AGENT
        assert "exited with code 3" in outcome.message


async def test_an_agent_that_blocks_its_worker_is_named_killed_and_alone_to_blame(
    model_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    here, when = tmp_path / "here", tmp_path / "when"
    async with playing(
        sample_agents.does_as_told, model_dir, tmp_path, block_limit_s=2.0, infra_retries=0
    ) as play:
        guilty = asyncio.create_task(play(do="block", when=when))
        innocent = asyncio.create_task(play(do="wait", here=here))
        await play.beside(innocent, here)
        when.touch()
        outcome = (await guilty).outcome
        assert outcome.error is ErrorKind.TIMEOUT
        assert "held the event loop of agent-0" in outcome.message
        assert "in _block" in outcome.message
        assert "rollout.tool_timeout_s" in outcome.message
        assert (await innocent).outcome.error is ErrorKind.INFRASTRUCTURE
        assert (await play()).reward == 1.0
    assert "_block" in caplog.text
    assert (
        "time.sleep(600)" in (tmp_path / "agent-0.log").read_text()
        or "in _block" in (tmp_path / "agent-0.log").read_text()
    ), "faulthandler wrote where it stands"


@pytest.mark.parametrize("ends", ["before", "meanwhile"])
async def test_a_step_that_just_ended_costs_no_worker(
    ends: str, model_dir: Path, tmp_path: Path
) -> None:
    async with playing(sample_agents.plain_agent, model_dir, tmp_path) as play:
        (worker,) = play.pool._workers
        worker._holder.enter(7)
        step = worker.step_over(0.0)
        assert step is not None
        if ends == "before":
            worker._holder.enter(8)
        killing = asyncio.create_task(worker.kill_for_blocking(step))
        await asyncio.sleep(0)
        worker._holder.leave()
        await killing
        assert not worker.is_lost
        assert (await play()).reward
        assert play.pool.num_started == 1


async def test_who_waits_for_a_worker_replaces_one_that_is_lost_meanwhile(
    model_dir: Path, tmp_path: Path
) -> None:
    async with playing(sample_agents.plain_agent, model_dir, tmp_path) as play:
        pool = play.pool
        for task in pool._background:
            task.cancel()  # nobody else watches
        (first,) = pool._workers
        first.is_retired = True
        pool._slots.fill(retry=False)
        (place,) = pool._slots._tasks
        place.add_done_callback(lambda place: setattr(place.result(), "is_retired", True))
        async with asyncio.timeout(PATIENCE_S):
            worker = await pool._pick()
        assert not worker.is_lost
        assert pool.num_started == 3


FRAGILE = """
from pathlib import Path

if Path("{broken}").exists():
    raise RuntimeError("the file is broken")

def agent(task, context):
    return 1.0
"""


async def test_a_worker_that_does_not_start_is_tried_again_after_a_pause_and_why_is_said_once(
    model_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, broken = tmp_path / "agent.py", tmp_path / "broken"
    file.write_text(FRAGILE.format(broken=broken))
    async with AgentPool(
        AgentSpec("agent", f"{file}::agent"), size=1, log_dir=tmp_path / "logs"
    ) as pool:
        broken.touch()
        os.kill(pool.pids["agent-0"], signal.SIGKILL)
        log = tmp_path / "logs" / "agent-0.log"
        await until(lambda: "tried again in 0.5 s" in caplog.text)
        waiting = asyncio.create_task(pool._pick())
        await until(lambda: caplog.text.count("did not start") == 1 and not waiting.done())
        broken.unlink()
        async with asyncio.timeout(PATIENCE_S):
            assert not (await waiting).is_lost
        assert pool.num_started == 2, "the attempts of one replacement"
    (said,) = [row for row in caplog.messages if "did not start" in row]
    assert said.startswith("agent-0 did not start: ")
    assert "the file is broken" in said, log.read_text()


async def test_what_ignores_its_cancellation_gets_no_new_episodes_and_ends(
    model_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    here = tmp_path / "here"
    async with playing(
        sample_agents.does_as_told, model_dir, tmp_path, episode_timeout_s=10.0
    ) as play:
        first = play.pool.pids["agent-0"]
        assert (await play(do="ignore", here=here)).outcome.error is ErrorKind.TIMEOUT
        await until(lambda: "it gets no more" in caplog.text)
        await until(lambda: not is_alive(first))
        assert (await play()).reward == 1.0
        assert play.pool.pids["agent-0"] != first


async def test_cancelling_an_episode_stops_it_in_its_worker(
    model_dir: Path, tmp_path: Path
) -> None:
    here = tmp_path / "here"
    script = Reply(fault=Fault.HANG)
    async with playing(sample_agents.does_as_told, model_dir, tmp_path, script=script) as play:
        episode = asyncio.create_task(play(do="generate_for_ever", here=here))
        await until(lambda: play.num_running == 1, episode)
        episode.cancel()
        with pytest.raises(asyncio.CancelledError):
            await episode
        assert play.num_running == 0, "the engine was told"
        cleaning = asyncio.create_task(play(do="clean_up", here=here))
        here.unlink(missing_ok=True)
        await play.beside(cleaning, here)
        cleaning.cancel()
        await until(here.with_suffix(".cleaned").exists)


async def test_closing_waits_for_nobody(model_dir: Path, tmp_path: Path) -> None:
    clock = asyncio.get_running_loop().time
    when = tmp_path / "when"
    when.touch()
    here = tmp_path / "here"
    async with playing(sample_agents.does_as_told, model_dir, tmp_path, size=2) as play:
        episodes = [
            asyncio.create_task(play(do=deed, here=here, when=when))
            for deed in ("wait", "ignore", "block", "wait")
        ]
        await until(here.exists, *episodes)
        began = clock()
        for episode in episodes:
            episode.cancel()
        await asyncio.gather(*episodes, return_exceptions=True)
        pids = list(play.pool.pids.values())
    assert clock() - began < 15.0, "at most 1.5 s to leave, 1 s after SIGTERM; the machine is busy"
    assert not any(map(is_alive, pids))


def test_numbers_of_numpy_and_episodes_are_reduced_to_what_the_main_process_knows() -> None:
    metrics = {"steps": np.int64(3)}
    outcome = Outcome(OutcomeKind.REWARD, reward=np.float32(0.5), metrics=metrics)  # type: ignore[arg-type]
    episode = Episode("e", Task("t", {"mine": sample_agents.Question("?")}), (), outcome)
    for result, expected in (
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        ({"a": np.float64(1.0)}, {"a": 1.0}),
        ([np.float32(0.5), None], [0.5, None]),
        (episode, Episode("e", Task("t"), (), Outcome.scored(0.5, metrics={"steps": 3.0}))),
    ):
        packed = pack_result(result)
        assert unpack_result(packed) == expected
        assert b"numpy" not in packed


def _local_agent() -> Any:
    async def agent(task: Task, context: Any) -> float:
        return 1.0

    return agent


@pytest.mark.parametrize(
    "agent",
    [lambda task, context: 1.0, _local_agent(), sample_agents.Solver(), sample_agents.solver.run],
)
def test_what_no_worker_could_find_names_the_cure(agent: object) -> None:
    with pytest.raises(ConfigError, match=r"workers = 0"):
        AgentSpec.of(agent, name="agent")


def test_options_are_checked_before_any_worker_starts() -> None:
    with pytest.raises(ConfigError, match="did you mean 'bonus'"):
        AgentSpec.of(sample_agents.Solver, name="Solver", options={"bonnus": 1})


async def test_an_agent_file_that_cannot_be_imported_fails_the_start_in_one_line(
    tmp_path: Path,
) -> None:
    file = tmp_path / "agent.py"
    file.write_text("import areal_sdk\nraise RuntimeError('no GPU here')\n")
    with pytest.raises(ConfigError, match=r"agent.py could not be imported: line 2: RuntimeError"):
        async with AgentPool(
            AgentSpec("agent", f"{file}::agent"), size=2, log_dir=tmp_path / "logs"
        ):
            pass


async def test_a_script_that_trains_when_imported_does_not_train_in_every_worker(
    tmp_path: Path,
) -> None:
    file = tmp_path / "script.py"
    file.write_text(
        "import areal_sdk\n\nasync def agent(task, context):\n    return 1.0\n\n"
        "areal_sdk.train(agent, model='tiny', tasks=[areal_sdk.Task('t')])\n"
    )
    with pytest.raises(ConfigError, match=r'line 6: .*under `if __name__ == "__main__":`'):
        async with AgentPool(
            AgentSpec("agent", f"{file}::agent"), size=1, log_dir=tmp_path / "logs"
        ):
            pass
