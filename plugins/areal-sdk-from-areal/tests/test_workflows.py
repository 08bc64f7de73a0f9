"""AReaL's workflows, `arun_episode(self, engine, data)`, run as they are."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import areal_sdk
from areal_sdk import ConfigError, Task
from areal_sdk.algorithms import turn_returns
from areal_sdk.backends.remote import resolve_model
from areal_sdk.engine import GenerateRequest
from areal_sdk.testing import run_agent, to_trajectories
from areal_sdk.types import Episode, ErrorKind, OutcomeKind


@pytest.fixture
def model_dir() -> Path:
    """The tiny model, whose tokens are the bytes of a text."""
    return resolve_model("tiny")


async def play(agent: Any, script: Any, model_dir: Path) -> Episode:
    """One episode of the agent."""
    task = {"question": "2+2?", "answer": "4"}
    return await run_agent(agent, task, engine=script, model_dir=model_dir)


async def test_an_areal_workflow_runs_as_it_is(model_dir: Path) -> None:
    class ArealWorkflow:
        async def arun_episode(self, engine: Any, data: dict[str, Any]) -> Any:
            request = SimpleNamespace(
                input_ids=[1, 2, 3], gconfig=SimpleNamespace(max_new_tokens=8), rid="r"
            )
            response = await engine.agenerate(request)
            assert response.input_tokens == [1, 2, 3]
            assert response.output_len == len(response.output_logprobs) == 2
            assert response.stop_reason == "stop"
            return {"rewards": [0.75], "input_ids": [response.input_tokens]}

    episode = await play(ArealWorkflow(), "4", model_dir)
    assert episode.reward == 0.75
    assert episode.turns[0].prompt_tokens == (1, 2, 3)


async def test_an_areal_workflow_rejects_an_episode_with_none(model_dir: Path) -> None:
    class Rejects:
        async def arun_episode(self, engine: Any, data: dict[str, Any]) -> None:
            return None

    assert (await play(Rejects(), "4", model_dir)).outcome.kind is OutcomeKind.ABSTAIN


class TwoSamples:
    """An AReaL workflow of two completions."""

    def __init__(self, result: object) -> None:
        self._result = result

    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> Any:
        for _ in range(2):
            await engine.agenerate(SimpleNamespace(input_ids=[1, 2, 3]))
        return self._result


@pytest.mark.parametrize(
    "result",
    [
        {"rewards": [0.0, 1.0]},
        {"rewards": np.array([[1.0], [1.0]])},
        {"a": SimpleNamespace(reward=0.0), "b": SimpleNamespace(reward=1.0)},
    ],
    ids=["list", "array", "by completion"],
)
async def test_several_rewards_of_an_areal_workflow_are_not_one_of_them(
    result: object, model_dir: Path
) -> None:
    episode = await play(TwoSamples(result), "4", model_dir)
    assert episode.outcome.error is ErrorKind.AGENT
    assert "2 rewards for one episode" in episode.outcome.message
    assert "rollout.group_size" in episode.outcome.message


async def test_the_only_reward_of_an_areal_workflow_is_its_episodes(model_dir: Path) -> None:
    unscored, scored = SimpleNamespace(reward=None), SimpleNamespace(reward=0.5)
    for result in ({"rewards": np.array([[0.5]])}, {"a": unscored, "b": scored}):
        assert (await play(TwoSamples(result), "4", model_dir)).reward == 0.5


END = 258
"""The token that ends an answer of the scripted engine's model."""
TOKENIZER = SimpleNamespace(eos_token_id=END, pad_token_id=None)


def request(tokens: list[int], **config: Any) -> SimpleNamespace:
    """AReaL's `ModelRequest`, as far as an engine reads it."""
    settings = {"n_samples": 1, "temperature": 1.0, "top_p": 1.0, "top_k": 10**8, "stop": None}
    return SimpleNamespace(
        input_ids=tokens, gconfig=SimpleNamespace(**settings | config), tokenizer=TOKENIZER
    )


@dataclass
class Interaction:
    """AReaL's `InteractionWithTokenLogpReward`, as far as a result is read."""

    model_response: Any
    reward: float | None = None
    parent: "Interaction | None" = None
    chat_template_type: str = "hf"


class Plays:
    """An AReaL workflow of one function."""

    def __init__(self, function: Callable[[Any], Awaitable[Any]]) -> None:
        self._function = function

    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> Any:
        return await self._function(engine)


class OneSample:
    """A workflow that another process can import."""

    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> dict[str, Any]:
        response = await engine.agenerate(request([50, 43], max_new_tokens=4))
        assert engine.get_version() == 0
        return {"rewards": [float(response.output_len > 0)]}


def test_a_workflow_plays_in_a_worker() -> None:
    pytest.importorskip("torch", reason="the local engine needs areal-sdk[train]")
    report = areal_sdk.evaluate(
        OneSample, model="tiny", tasks=[Task("one")], quiet=True, rollout={"workers": 1}
    )
    assert report.reward is not None
    assert (report.reward.value, report.errors) == (1.0, {})


@pytest.mark.parametrize("workers", [0, 1])
def test_a_workflow_on_an_endpoint_without_tokens_is_refused(workers: int) -> None:
    with pytest.raises(ConfigError, match=r"OneSample is played token by token.*--model"):
        areal_sdk.evaluate(
            OneSample,
            tasks=[Task("one")],
            base_url="http://127.0.0.1:9/v1",
            rollout={"workers": workers},
        )


async def two_turns(engine: Any) -> tuple[Any, Any]:
    """A completion, and another that goes on from it."""
    first = await engine.agenerate(request([1, 2, 3]))
    second = await engine.agenerate(request([*first.input_tokens, *first.output_tokens, 7]))
    return first, second


async def test_areals_interactions_are_trained_with_the_rewards_that_they_name(
    model_dir: Path,
) -> None:
    async def discounted(engine: Any) -> dict[str, Interaction]:
        first, second = await two_turns(engine)
        return {"a": Interaction(first, 0.5), "b": Interaction(second, 1.0)}

    episode = await play(Plays(discounted), "4", model_dir)
    (trajectory,) = to_trajectories(episode)
    assert turn_returns(trajectory) == [0.5, 1.0]
    assert episode.outcome.turn_rewards == (-0.5, 1.0)


async def test_areals_answers_to_one_prompt_have_a_reward_each(model_dir: Path) -> None:
    async def both(engine: Any) -> dict[str, Interaction]:
        answers = [await engine.agenerate(request([1, 2, 3])) for _ in range(2)]
        return {"a": Interaction(answers[0], 0.0), "b": Interaction(answers[1], 1.0)}

    episode = await play(Plays(both), ["4", "5"], model_dir)
    assert episode.outcome.turn_rewards == (0.0, 1.0)
    returns = [turn_returns(t) for t in to_trajectories(episode)]
    assert returns == [[0.0, 1.0], [0.0, 1.0]]


async def test_an_unrewarded_interaction_counts_as_zero_as_in_areal(model_dir: Path) -> None:
    async def last_only(engine: Any) -> dict[str, Interaction]:
        first, second = await two_turns(engine)
        return {"a": Interaction(first), "b": Interaction(second, 1.0)}

    episode = await play(Plays(last_only), "4", model_dir)
    (trajectory,) = to_trajectories(episode)
    assert turn_returns(trajectory) == [0.0, 1.0]


async def test_areals_concatenated_conversation_is_trained_whole(model_dir: Path) -> None:
    async def concat(engine: Any) -> dict[str, Interaction]:
        first, second = await two_turns(engine)
        parent = Interaction(first, 0.5, chat_template_type="concat")
        return {"b": Interaction(second, 1.0, parent, "concat")}

    episode = await play(Plays(concat), "4", model_dir)
    assert episode.reward == 1.0
    assert episode.outcome.turn_rewards == ()
    assert [turn.excluded for turn in episode.turns] == [None, None]


async def test_a_completion_that_areals_result_leaves_out_is_context(model_dir: Path) -> None:
    async def second_only(engine: Any) -> dict[str, Interaction]:
        _, second = await two_turns(engine)
        return {"b": Interaction(second, 0.75)}

    episode = await play(Plays(second_only), "4", model_dir)
    assert episode.reward == 0.75
    assert [turn.excluded is None for turn in episode.turns] == [False, True]
    (trajectory,) = to_trajectories(episode)
    assert trajectory.loss_mask.sum() == len(episode.turns[1].output_tokens)


async def test_interactions_without_any_reward_are_no_zero(model_dir: Path) -> None:
    async def unscored(engine: Any) -> dict[str, Interaction]:
        first, second = await two_turns(engine)
        return {"a": Interaction(first), "b": Interaction(second)}

    assert (await play(Plays(unscored), "4", model_dir)).outcome.kind is OutcomeKind.ABSTAIN


async def masked(engine: Any, *, marks: Callable[[int, int], list[int]]) -> dict[str, Any]:
    """AReaL's result with tensors: `marks` says 0 or 1 for each token of the two completions."""
    first, second = await two_turns(engine)
    row = [*second.input_tokens, *second.output_tokens]
    mask = [0] * 3 + marks(first.output_len, second.output_len)
    return {
        "input_ids": np.array([row]),
        "loss_mask": np.array([mask]),
        "rewards": np.array([0.5]),
    }


@pytest.mark.parametrize(
    ("marks", "trained"),
    [
        (lambda first, second: [1] * first + [0] + [1] * second, [True, True]),
        (lambda first, second: [0] * first + [0] + [1] * second, [False, True]),
        (lambda first, second: [0] * (first + 1 + second), [False, False]),
    ],
    ids=["both", "the second", "none"],
)
async def test_areals_loss_mask_says_which_completions_are_trained(
    marks: Callable[[int, int], list[int]], trained: list[bool], model_dir: Path
) -> None:
    episode = await play(Plays(partial(masked, marks=marks)), "4", model_dir)
    assert episode.outcome.message == ""
    assert episode.reward == 0.5
    assert [turn.excluded is None for turn in episode.turns] == trained


@pytest.mark.parametrize(
    "marks",
    [
        lambda first, second: [0] * (first - 1) + [1] + [0] + [1] * second,
        lambda first, second: [1] * first + [1] + [1] * second,
    ],
    ids=["a part of a completion", "a token of the prompt"],
)
async def test_a_loss_mask_that_marks_other_tokens_is_the_agents_error(
    marks: Callable[[int, int], list[int]], model_dir: Path
) -> None:
    episode = await play(Plays(partial(masked, marks=marks)), "4", model_dir)
    assert episode.outcome.error is ErrorKind.AGENT
    assert "mark all tokens that agenerate returned, or none" in episode.outcome.message


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"n_samples": 2}, "gconfig.n_samples = 2"),
        ({"top_p": 0.9}, "gconfig.top_p = 0.9"),
        ({"top_k": 50}, "gconfig.top_k = 50"),
        ({"min_new_tokens": 4}, "gconfig.min_new_tokens = 4"),
        ({"frequency_penalty": 0.5}, "gconfig.frequency_penalty = 0.5"),
        ({"ignore_eos": True}, "gconfig.ignore_eos = True"),
        ({"max_tokens": 3}, "gconfig.max_tokens = 3 leaves none"),
    ],
)
async def test_what_areals_engine_can_and_ours_cannot_is_refused_by_name(
    asked: dict[str, Any], named: str, model_dir: Path
) -> None:
    episode = await play(
        Plays(lambda engine: engine.agenerate(request([1, 2, 3], **asked))), "4", model_dir
    )
    assert episode.outcome.error is ErrorKind.AGENT
    assert named in episode.outcome.message


async def test_images_for_areals_engine_are_refused_by_name(model_dir: Path) -> None:
    async def look(engine: Any) -> None:
        asked = request([1, 2, 3])
        asked.image_data = ["data:image/png;base64,"]
        await engine.agenerate(asked)

    episode = await play(Plays(look), "4", model_dir)
    assert "image_data: images are not possible here" in episode.outcome.message


async def test_areals_limits_and_stop_tokens_reach_the_engine(model_dir: Path) -> None:
    seen: list[GenerateRequest] = []

    def script(asked: GenerateRequest) -> str:
        seen.append(asked)
        return "abcdef"

    async def limited(engine: Any) -> float:
        first = await engine.agenerate(request([1, 2, 3], max_new_tokens=9, max_tokens=7))
        assert first.stop_reason == "length"
        assert first.output_len == 4
        last = await engine.agenerate(request([1, 2], stop_token_ids=[ord("c"), None]))
        assert last.output_tokens == [ord("a"), ord("b"), ord("c")]
        return 1.0

    episode = await play(Plays(limited), script, model_dir)
    assert episode.outcome.message == ""
    assert seen[0].max_new_tokens == 4
    assert seen[1].stop_tokens == (ord("c"),)


async def test_areals_response_tells_the_end_from_the_answer(model_dir: Path) -> None:
    async def look(engine: Any) -> float:
        response = await engine.agenerate(request([1, 2, 3]))
        assert response.end_with_stop
        assert response.output_tokens[:-1] == response.output_tokens_without_stop == [ord("4")]
        response.stop_reason = "tool_calls"  # AReaL's client does so
        return 1.0

    episode = await play(Plays(look), "4", model_dir)
    assert episode.outcome.message == ""
