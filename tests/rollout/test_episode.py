"""One episode against a real gateway: what the agent does, and what becomes of it."""

import asyncio
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest

from areal_sdk.agent import Agent, EpisodeContext, RolloutWorkflow
from areal_sdk.errors import ConfigError, EngineError
from areal_sdk.gateway.sessions.session import SessionLimits
from areal_sdk.rollout.agents.adapters import as_play
from areal_sdk.rollout.evaluation import evaluate_tasks
from areal_sdk.rollout.judging.reward_pool import RewardPool, RewardSpec
from areal_sdk.rollout.tasks import EpisodeRequest
from areal_sdk.testing import Fault, Reply, ScriptedEngine
from areal_sdk.types import Episode, ErrorKind, Outcome, OutcomeKind, Task
from tests.rollout import sample_rewards
from tests.rollout.playing import PLAN, ask, client, play, serving
from tests.rollout.simulation import tasks


class Solver(Agent):
    async def run(self, task: Task, context: EpisodeContext) -> float:
        return float(await ask(context, task.data["question"]) == task.data["answer"])


async def test_an_agent_with_the_openai_client_plays_and_scores_itself(model_dir: Path) -> None:
    episode = await play(Solver(), "4", model_dir)
    assert episode.outcome == Outcome.scored(1.0)
    assert episode.final_text == "4"
    assert [message["role"] for message in episode.messages] == ["user", "assistant"]
    (turn,) = episode.turns
    assert len(turn.output_tokens) == 2, "the answer and the stop token"
    assert episode.duration_s > 0


async def test_a_plain_async_function_is_an_agent(model_dir: Path) -> None:
    async def agent(task: Task, context: EpisodeContext) -> float:
        return float(await ask(context) == "4")

    assert (await play(agent, "4", model_dir)).reward == 1.0


async def test_a_plain_function_runs_in_a_thread_and_blocks_nobody(model_dir: Path) -> None:
    threads: list[threading.Thread] = []

    def agent(task: Task, context: EpisodeContext) -> float:
        threads.append(threading.current_thread())
        with openai.OpenAI(base_url=context.base_url, api_key=context.api_key) as sync_client:
            completion = sync_client.chat.completions.create(
                model=context.model, messages=[{"role": "user", "content": "2+2?"}]
            )
        return float(completion.choices[0].message.content == "4")

    assert (await play(agent, "4", model_dir)).reward == 1.0
    assert threads[0] is not threading.main_thread()


async def test_a_workflow_decides_what_becomes_of_its_turns(model_dir: Path) -> None:
    class KeepsTheLast(RolloutWorkflow):
        async def run_episode(self, task: Task, context: EpisodeContext) -> Episode:
            await context.generate([{"role": "user", "content": "first"}])
            await context.generate([{"role": "user", "content": "second"}])
            return Episode("mine", task, context.turns[1:], Outcome.scored(0.5))

    episode = await play(KeepsTheLast(), "4", model_dir)
    assert episode.id == PLAN.id
    assert episode.reward == 0.5
    assert [m["content"] for m in episode.messages] == ["second", "4"]


async def test_a_workflow_cannot_claim_a_parent_that_its_turn_does_not_extend(
    model_dir: Path,
) -> None:
    class Forger(RolloutWorkflow):
        async def run_episode(self, task: Task, context: EpisodeContext) -> Episode:
            await context.generate([{"role": "user", "content": "a"}])
            await context.generate([{"role": "user", "content": "b"}])
            first, second = context.turns
            turns = (first, replace(second, parent=0))
            return Episode("mine", task, turns, Outcome.scored(1.0))

    episode = await play(Forger(), "4", model_dir)
    assert episode.outcome.error is ErrorKind.AGENT
    assert "does not extend" in episode.outcome.message


async def test_an_agent_that_closes_its_client_does_not_cut_the_others_off(
    model_dir: Path,
) -> None:
    async def agent(task: Task, context: EpisodeContext) -> float:
        async with client(context) as own:
            await own.chat.completions.create(
                model=context.model, messages=[{"role": "user", "content": "2+2?"}]
            )
        return 1.0

    async with serving(agent, ScriptedEngine("4", model_dir=model_dir), model_dir) as runner:
        episodes = [await runner.run(PLAN) for _ in range(2)]
        pool = runner._http_client
    assert [episode.reward for episode in episodes] == [1.0, 1.0]
    assert pool.is_closed


async def test_a_client_waits_for_the_gateway_as_long_as_the_episode_may(model_dir: Path) -> None:
    limits: list[dict[str, float | None]] = []

    async def agent(task: Task, context: EpisodeContext) -> float:
        own = client(context)
        limits.append(
            own._client.build_request("GET", "/", timeout=own.timeout).extensions["timeout"]
        )
        return 1.0

    await play(agent, "4", model_dir)
    assert set(limits[0].values()) == {None}


@pytest.mark.parametrize(("is_gateway", "num_plays"), [(True, 3), (False, 1)])
async def test_a_gateway_that_takes_no_connection_is_no_error_of_the_agent(
    model_dir: Path, is_gateway: bool, num_plays: int
) -> None:
    attempts = 0

    async def agent(task: Task, context: EpisodeContext) -> None:
        nonlocal attempts
        attempts += 1
        if not is_gateway:
            context = replace(context, base_url="http://127.0.0.1:9/v1")
        async with openai.DefaultAsyncHttpxClient() as own:
            limits = openai.Timeout(60.0, connect=1e-9)
            await ask(replace(context, http_client=own), max_retries=0, timeout=limits)

    episode = await play(agent, "4", model_dir)
    kind = ErrorKind.INFRASTRUCTURE if is_gateway else ErrorKind.AGENT
    assert (episode.outcome.error, attempts) == (kind, num_plays), episode.outcome.message


async def test_an_exception_in_the_agent_is_its_error_and_not_a_zero(model_dir: Path) -> None:
    async def agent(task: Task, context: EpisodeContext) -> float:
        await ask(context)
        return float(task.data["missing"])

    episode = await play(agent, "4", model_dir)
    assert episode.outcome.error is ErrorKind.AGENT
    place = f"(test_episode.py:{agent.__code__.co_firstlineno + 2})"
    assert episode.outcome.message.startswith(f"agent: KeyError: 'missing' {place}; ")
    assert episode.outcome.trace.startswith("Traceback")
    assert 'return float(task.data["missing"])' in episode.outcome.trace
    assert "areal_sdk" not in episode.outcome.trace, "only the user's part of it"
    assert episode.reward is None
    assert len(episode.turns) == 1, "what it did until then is kept for the reader"


async def without_base_url(task: Task, context: EpisodeContext) -> float:
    async with openai.AsyncOpenAI(
        base_url="http://127.0.0.1:9/v1", api_key="mine", max_retries=0
    ) as other:
        await other.models.list()
    return 1.0


async def without_key(task: Task, context: EpisodeContext) -> float:
    openai.AsyncOpenAI()
    return 1.0


async def of_another_file(task: Task, context: EpisodeContext) -> float:
    return float(task.data["problem"])


@pytest.mark.parametrize(
    ("agent", "told"),
    [
        (without_base_url, "APIConnectionError: Connection error. (test_episode.py:"),
        (without_base_url, "; no call reached the model: give the client base_url=context.base"),
        (without_key, "; no call reached the model: give the client base_url=context.base_url"),
        (
            of_another_file,
            "; task.data has: question, answer; to rename one: --set fields.problem=COLUMN",
        ),
    ],
)
async def test_a_common_error_of_a_first_agent_names_its_cure(
    agent: Any, told: str, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert told in (await play(agent, ["4"], model_dir)).outcome.message


async def test_on_agent_error_can_be_a_reward(model_dir: Path) -> None:
    async def agent(task: Task, context: EpisodeContext) -> float:
        await ask(context)
        raise ValueError("malformed")

    episode = await play(agent, "4", model_dir, on_agent_error=-0.5)
    assert episode.reward == -0.5
    assert episode.outcome.success is False
    assert "malformed" in episode.outcome.message


WAYS = "a reward returns a number, a list with one number per turn, an Outcome or None"


@pytest.mark.parametrize(
    ("result", "told"),
    [
        (float("nan"), "a reward must be a finite number, not nan"),
        ("good", f"{WAYS}, not str"),
        ((1.0, "good"), f"{WAYS}, not (1.0, 'good')"),
        ([1.0, 2.0], f"2 turn rewards for an episode of 1 turns: {WAYS}"),
        ({"reward": 1.0}, "return a number, or {completion.id: number}"),
    ],
)
async def test_a_result_that_is_no_verdict_is_the_agents_error(
    result: Any, told: str, model_dir: Path
) -> None:
    async def agent(task: Task, context: EpisodeContext) -> Any:
        await ask(context)
        return result

    episode = await play(agent, "4", model_dir)
    assert episode.outcome.error is ErrorKind.AGENT
    assert told in episode.outcome.message
    assert episode.reward is None


async def test_exit_in_an_agent_does_not_end_the_run(model_dir: Path) -> None:
    async def agent(task: Task, context: EpisodeContext) -> float:
        sys.exit(3)

    episode = await play(agent, "4", model_dir)
    assert episode.outcome.message == "the agent called exit(3)"


async def cancels_its_helper(task: Task, context: EpisodeContext) -> float:
    helper = asyncio.create_task(asyncio.sleep(600))
    helper.cancel()
    await helper
    return 1.0


async def test_a_cancellation_of_the_agents_own_is_its_error(model_dir: Path) -> None:
    episode = await play(cancels_its_helper, "4", model_dir)
    assert episode.outcome.error is ErrorKind.AGENT
    line = cancels_its_helper.__code__.co_firstlineno + 3
    assert "catch it where a cancelled task is awaited" in episode.outcome.message
    assert episode.outcome.message.endswith(f"(test_episode.py:{line})")


async def test_an_evaluation_counts_episodes_that_cancelled_themselves(model_dir: Path) -> None:
    engine = ScriptedEngine("4", model_dir=model_dir)
    async with serving(cancels_its_helper, engine, model_dir) as runner:
        report = await evaluate_tasks(runner, tasks(3), max_concurrency=1)
    assert report.num_episodes == 3
    assert report.errors == {"agent": 3}


async def test_an_engine_fault_is_infrastructure_even_if_the_agent_swallowed_it(
    model_dir: Path,
) -> None:
    async def agent(task: Task, context: EpisodeContext) -> float:
        try:
            await ask(context, max_retries=0)
        except openai.APIError:
            return 0.0
        return 1.0

    script = [Reply("4", fault=Fault.RAISE)] * 10
    episode = await play(agent, script, model_dir, infra_retries=0)
    assert episode.outcome.error is ErrorKind.INFRASTRUCTURE
    assert episode.reward is None


async def test_an_engine_fault_is_infrastructure_even_if_it_reached_us_as_the_clients_error(
    model_dir: Path,
) -> None:
    async def agent(task: Task, context: EpisodeContext) -> float:
        await ask(context, max_retries=0)
        return 1.0

    script = [Reply("4", fault=Fault.CLOSE)] * 10
    episode = await play(agent, script, model_dir, infra_retries=0)
    assert episode.outcome.error is ErrorKind.INFRASTRUCTURE
    assert "without a finish reason" in episode.outcome.message


async def test_an_infrastructure_fault_is_tried_again_as_the_same_episode(model_dir: Path) -> None:
    async def agent(task: Task, context: EpisodeContext) -> float:
        turn = await context.generate([{"role": "user", "content": "2+2?"}])
        return float(turn.text == "4")

    script = [Reply(fault=Fault.RAISE), Reply(fault=Fault.RAISE), "4"]
    episode = await play(agent, script, model_dir, infra_retries=2)
    assert (episode.id, episode.attempt, episode.reward) == (PLAN.id, 2, 1.0)
    assert len(episode.turns) == 1
    script = [Reply(fault=Fault.RAISE), Reply(fault=Fault.RAISE), "4"]
    episode = await play(agent, script, model_dir, infra_retries=1)
    assert (episode.attempt, episode.outcome.error) == (1, ErrorKind.INFRASTRUCTURE)


async def test_an_agents_own_failure_is_not_tried_again(model_dir: Path) -> None:
    calls = []

    async def agent(task: Task, context: EpisodeContext) -> float:
        calls.append(context.episode_id)
        raise EngineError("not ours") if False else ValueError("mine")

    await play(agent, "4", model_dir, infra_retries=3)
    assert calls == [PLAN.id]


async def test_a_deadline_is_a_timeout_even_for_an_agent_that_ignores_cancellation(
    model_dir: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = asyncio.Event()

    async def agent(task: Task, context: EpisodeContext) -> float:
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue
        return 1.0

    monkeypatch.setattr("areal_sdk.rollout.agents.deadline.CANCEL_GRACE_S", 0.05)
    try:
        episode = await play(agent, "4", model_dir, episode_timeout_s=0.05)
    finally:
        released.set()
    assert episode.outcome.error is ErrorKind.TIMEOUT
    assert "rollout.episode_timeout_s" in episode.outcome.message
    assert "ignores cancellation" in caplog.text


async def test_stopping_the_run_does_not_wait_for_an_agent_that_ignores_it(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    playing, released = asyncio.Event(), asyncio.Event()

    async def agent(task: Task, context: EpisodeContext) -> float:
        playing.set()
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue
        return 1.0

    monkeypatch.setattr("areal_sdk.rollout.agents.deadline.CANCEL_GRACE_S", 0.05)
    async with serving(agent, ScriptedEngine("4", model_dir=model_dir), model_dir) as runner:
        episode = asyncio.create_task(runner.run(PLAN))
        await playing.wait()
        episode.cancel()
        try:
            async with asyncio.timeout(60):
                with pytest.raises(asyncio.CancelledError):
                    await episode
        finally:
            released.set()


async def test_a_timeout_error_of_the_agent_itself_is_not_our_deadline(model_dir: Path) -> None:
    async def agent(task: Task, context: EpisodeContext) -> float:
        raise TimeoutError("a tool took too long")

    assert (await play(agent, "4", model_dir)).outcome.error is ErrorKind.AGENT


async def test_a_late_turn_cannot_enter_an_episode_that_is_over(model_dir: Path) -> None:
    late: list[Any] = []

    async def straggle(context: EpisodeContext, go: asyncio.Event) -> None:
        await go.wait()
        with pytest.raises(openai.APIStatusError) as info:
            await ask(context, max_retries=0)
        late.append(info.value.status_code)

    go = asyncio.Event()
    stragglers: list[asyncio.Task[None]] = []

    async def agent(task: Task, context: EpisodeContext) -> float:
        await ask(context)
        stragglers.append(asyncio.create_task(straggle(context, go)))
        return 1.0

    engine = ScriptedEngine("4", model_dir=model_dir)
    async with serving(agent, engine, model_dir) as runner:
        episode = await runner.run(PLAN)
        go.set()
        await stragglers[0]
    assert late == [409]
    assert len(episode.turns) == 1


async def test_a_limit_is_an_outcome_that_the_agents_own_verdict_scores(model_dir: Path) -> None:
    async def agent(task: Task, context: EpisodeContext) -> float:
        try:
            while True:
                await ask(context)
        except openai.BadRequestError as exc:
            return 0.25 if exc.code == "episode_limit_reached" else 0.0

    episode = await play(agent, "4", model_dir, limits=SessionLimits(max_turns=2))
    assert episode.truncated
    assert (episode.reward, len(episode.turns)) == (0.25, 2)


async def test_a_limit_that_the_agent_did_not_catch_is_scored_by_the_rewards(
    model_dir: Path, tmp_path: Path
) -> None:
    async def agent(task: Task, context: EpisodeContext) -> float:
        while True:
            await ask(context)

    limits = SessionLimits(max_turns=2)
    async with RewardPool(
        [RewardSpec.of("length", sample_rewards.length)], log_dir=tmp_path
    ) as pool:
        episode = await play(agent, "a b c", model_dir, limits=limits, rewards=pool)
    assert (episode.truncated, episode.reward) == (True, 3.0)
    episode = await play(agent, "a b c", model_dir, limits=limits)
    assert (episode.truncated, episode.outcome.kind) == (True, OutcomeKind.ABSTAIN)
    assert "a limit ended it" in episode.outcome.message
    episode = await play(agent, "a b c", model_dir, limits=limits, on_agent_error=0.0)
    assert (episode.truncated, episode.reward) == (True, 0.0)


async def test_none_is_scored_by_the_rewards_and_without_any_it_abstains(
    model_dir: Path, tmp_path: Path
) -> None:
    async def agent(task: Task, context: EpisodeContext) -> None:
        await ask(context)

    specs = [RewardSpec.of("length", sample_rewards.length)]
    async with RewardPool(specs, log_dir=tmp_path) as pool:
        assert (await play(agent, "one two", model_dir, rewards=pool)).reward == 2.0
    outcome = (await play(agent, "one two", model_dir)).outcome
    assert outcome.kind is OutcomeKind.ABSTAIN
    assert "returned None and no reward is configured" in outcome.message


async def test_a_failing_reward_is_a_reward_error(model_dir: Path, tmp_path: Path) -> None:
    async def agent(task: Task, context: EpisodeContext) -> None:
        await ask(context)

    specs = [RewardSpec.of("raises", sample_rewards.raises)]
    async with RewardPool(specs, log_dir=tmp_path) as pool:
        episode = await play(agent, "4", model_dir, rewards=pool)
    assert episode.outcome.error is ErrorKind.REWARD
    assert len(episode.turns) == 1


async def test_rewards_that_are_never_asked_are_said_so_once(
    model_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    specs = [RewardSpec.of("length", sample_rewards.length)]
    engine = ScriptedEngine("4", model_dir=model_dir)
    async with (
        RewardPool(specs, log_dir=tmp_path) as pool,
        serving(Solver(), engine, model_dir, rewards=pool) as runner,
    ):
        for _ in range(3):
            await runner.run(PLAN)
    assert caplog.text.count("return None to use them") == 1


async def test_deterministic_sessions_are_seeded_by_task_epoch_and_sibling(model_dir: Path) -> None:
    engine = ScriptedEngine("4", model_dir=model_dir)
    async with serving(Solver(), engine, model_dir, seed=3, deterministic=True) as runner:
        for sibling in (0, 1, 0):
            await runner.run(EpisodeRequest("e", PLAN.task, sibling=sibling))
        await runner.run(EpisodeRequest("e", PLAN.task, epoch=1))
    first, second, again, later = (request.seed for request in engine.requests)
    assert first == again
    assert None not in (first, second, later)
    assert len({first, second, later}) == 3


def test_what_is_not_an_agent_is_refused_with_the_cure() -> None:
    with pytest.raises(ConfigError, match=r"Solver is a class: pass an instance, Solver\(\)"):
        as_play(Solver)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="3 is not an agent: subclass"):
        as_play(3)  # type: ignore[arg-type]
