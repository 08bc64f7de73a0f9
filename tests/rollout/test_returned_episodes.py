"""Episodes that a workflow builds itself: it chooses among its turns, and forges none."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest

from areal_sdk.agent import EpisodeContext, RolloutWorkflow
from areal_sdk.gateway.sampling.request import SamplingPolicy
from areal_sdk.rollout.trajectory import as_recorded
from areal_sdk.types import Episode, ErrorKind, Exclusion, Outcome, Task, Turn, recorded_indices
from tests.rollout.playing import play

Choice = Callable[[Sequence[Turn]], Sequence[Turn]]


class Chooses(RolloutWorkflow):
    """Samples two turns of one conversation and one aside; `choice` makes the episode of them.

    The first is sampled greedily, so that its tokens are context.
    """

    def __init__(self, choice: Choice) -> None:
        self._choice = choice

    async def run_episode(self, task: Task, context: EpisodeContext) -> Episode:
        asked = {"role": "user", "content": "a"}
        first = await context.generate([asked], temperature=0.0)
        again = {"role": "user", "content": "again"}
        await context.generate([asked, first.message, again])
        await context.generate([{"role": "user", "content": "aside"}])
        assert [turn.parent for turn in context.turns] == [None, 0, None]
        assert [turn.excluded for turn in context.turns] == [Exclusion.GREEDY, None, None]
        turns = self._choice(context.turns)
        return Episode("mine", task, tuple(turns), Outcome.scored(0.5))


async def play_choice(choice: Choice, model_dir: Path) -> Episode:
    sampling = SamplingPolicy(mode="respect")
    return await play(Chooses(choice), "4", model_dir, sampling=sampling)


@pytest.mark.parametrize(
    "choice",
    [
        lambda turns: turns,
        lambda turns: (),
        lambda turns: turns[2:],
        lambda turns: (turns[2], turns[0]),
        lambda turns: (replace(turns[1], parent=None), turns[2]),
        lambda turns: (turns[0], replace(turns[1], message={"role": "assistant", "content": "4."})),
        lambda turns: (replace(turns[2], excluded=Exclusion.PENALTY),),
        lambda turns: (replace(turns[0], excluded=Exclusion.PENALTY),),
    ],
    ids=[
        *("all", "none", "one", "in another order", "without its parent", "said otherwise"),
        *("excluded", "excluded for another reason"),
    ],
)
async def test_a_workflow_chooses_among_its_turns(choice: Choice, model_dir: Path) -> None:
    episode = await play_choice(choice, model_dir)
    assert episode.outcome == Outcome.scored(0.5)


@pytest.mark.parametrize(
    "choice",
    [
        lambda turns: (*turns, replace(turns[2])),
        lambda turns: (replace(turns[2], output_tokens=(7,) * len(turns[2].output_tokens)),),
        lambda turns: (replace(turns[2], logprobs=(-9.0,) * len(turns[2].logprobs)),),
        lambda turns: (replace(turns[2], versions=(9,) * len(turns[2].versions)),),
        lambda turns: (replace(turns[2], temperature=0.5),),
        lambda turns: (replace(turns[2], new_tokens=(7, *turns[2].new_tokens[1:])),),
        lambda turns: (replace(turns[0], excluded=None),),
        lambda turns: (replace(turns[2], excluded="bad"),),
        lambda turns: (Turn((1, 2), (3,), (-0.5,), (0,)),),
    ],
    ids=[
        *("twice", "other tokens", "other logprobs", "other versions", "another temperature"),
        *("another prompt", "included again", "excluded with a word", "from nowhere"),
    ],
)
async def test_a_turn_that_was_not_sampled_so_is_the_workflows_error(
    choice: Choice, model_dir: Path
) -> None:
    episode = await play_choice(choice, model_dir)
    assert episode.outcome.error is ErrorKind.AGENT
    assert "context.turns" in episode.outcome.message


async def test_two_turns_that_are_alike_may_both_be_there(model_dir: Path) -> None:
    class Twice(RolloutWorkflow):
        async def run_episode(self, task: Task, context: EpisodeContext) -> Episode:
            for _ in range(2):
                await context.generate([{"role": "user", "content": "a"}])
            first, second = context.turns
            assert replace(first, duration_s=0, fork=None) == replace(
                second, duration_s=0, fork=None
            )
            return Episode("mine", task, (second, first), Outcome.scored(1.0))

    episode = await play(Twice(), "4", model_dir)
    assert episode.outcome == Outcome.scored(1.0)
    assert len(episode.turns) == 2


def test_turns_that_are_alike_are_found_in_any_order() -> None:
    free = Turn((1, 2), (3,), (-0.5,), (0,))
    bound = replace(free, excluded=Exclusion.GRAMMAR)
    for recorded in permutations([free, bound]):
        at = {turn.excluded: index for index, turn in enumerate(recorded)}
        for excluded in (bound, replace(bound, excluded=Exclusion.PENALTY)):
            found = (at[None], at[Exclusion.GRAMMAR])
            assert recorded_indices([free, excluded], recorded) == found
            assert recorded_indices([excluded, free], recorded) == found[::-1]
            assert set(recorded_indices([excluded, excluded], recorded)) == {0, 1}
        with pytest.raises(ValueError, match="twice"):
            recorded_indices([free, free], recorded)


def test_of_turns_that_are_alike_a_side_call_is_taken_last() -> None:
    free = Turn((1, 2), (3,), (-0.5,), (0,))
    side, bound, punished = (
        replace(free, excluded=reason)
        for reason in (Exclusion.SIDE_CALL, Exclusion.GRAMMAR, Exclusion.PENALTY)
    )
    for recorded in permutations([free, side, bound]):
        for returned, known in (
            ([free], (free,)),
            ([free, free], (free, side)),
            ([punished, free, free], (punished, free, side)),
        ):
            found = [recorded[index] for index in recorded_indices(returned, recorded)]
            assert as_recorded(returned, found) == known


class AsksForATitle(RolloutWorkflow):
    """A conversation of two turns, and a title between them; `choice` makes the episode of them."""

    def __init__(self, choice: Choice) -> None:
        self._choice = choice

    async def run_episode(self, task: Task, context: EpisodeContext) -> Episode:
        chat = [{"role": "system", "content": "Help."}, {"role": "user", "content": "a"}]
        tool = {"type": "function", "function": {"name": "add", "parameters": {}}}
        first = await context.generate(chat, tools=[tool])
        await context.generate([{"role": "system", "content": "Write a title."}, chat[1]])
        again = {"role": "user", "content": "again"}
        await context.generate([*chat, first.message, again], tools=[tool])
        return Episode("mine", task, tuple(self._choice(context.turns)), Outcome.scored(0.5))


@pytest.mark.parametrize(
    ("choice", "excluded"),
    [
        (lambda turns: turns, [None, Exclusion.SIDE_CALL, None]),
        (lambda turns: turns[1:2], [Exclusion.SIDE_CALL]),
        (lambda turns: (turns[0], turns[2]), [None, None]),
        (
            lambda turns: (turns[0], replace(turns[1], excluded=Exclusion.PENALTY)),
            [None, Exclusion.PENALTY],
        ),
    ],
    ids=["all", "the side call", "the conversation", "excluded by the workflow"],
)
async def test_a_side_call_that_a_workflow_returns_is_context_where_the_run_says_so(
    choice: Choice, excluded: list[Exclusion | None], model_dir: Path
) -> None:
    """The session excludes it when it closes, after the workflow read `context.turns`."""
    sampling = SamplingPolicy(trains_side_calls=False)
    episode = await play(AsksForATitle(choice), "4", model_dir, sampling=sampling)
    assert episode.outcome == Outcome.scored(0.5)
    assert [turn.excluded for turn in episode.turns] == excluded
