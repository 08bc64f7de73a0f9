"""`TextArena`: plays the seats of a game, and gives each turn the outcome of its own seat."""

import random
from collections.abc import Sequence
from typing import Literal

from areal_sdk import ArealError, EpisodeContext, Message, Outcome, RolloutWorkflow, Task
from areal_sdk_textarena.games import Game
from areal_sdk_textarena.opponents import random_move

Opponent = Literal["self", "random"]
LIMITS = ("context_length_exceeded", "episode_limit_reached")
"""Codes of refusals that end an episode: there is no room for another turn."""


class TextArena(RolloutWorkflow):
    """One episode is one game. Each seat that the model plays has a conversation of its own.

    opponent: who plays the other seats in training: the same weights ("self"), or legal moves by chance.
    eval_opponent: the same for evaluations. Against itself a model always wins half of its games.
    moves: what "random" chooses from, where the game lists no moves.
    max_moves: of all seats together; a game that goes on longer is a draw.
    """

    def __init__(
        self,
        *,
        opponent: Opponent = "self",
        eval_opponent: Opponent = "random",
        moves: tuple[str, ...] = (),
        max_moves: int = 100,
    ) -> None:
        self._opponents = {"train": opponent, "eval": eval_opponent}
        self._moves = moves
        self._max_moves = max_moves

    async def run_episode(self, task: Task, context: EpisodeContext) -> Outcome:
        data = task.data
        name, players = str(data["game"]), int(data["players"])
        game = Game(name, players=players, seed=int(data["seed"]), arguments=data.get("arguments"))
        opponent = self._opponents["train" if context.split == "train" else "eval"]
        own = range(players) if opponent == "self" else [int(data["seat"])]
        chance = random.Random(context.seed)
        messages: list[list[Message]] = [[] for _ in range(players)]
        movers: list[int] = []
        seen = [""] * players
        out: int | None = None
        for _ in range(self._max_moves):
            seat = game.seat
            told = game.observe()
            if players > 1 and not messages[seat]:
                # Equal first prompts would make two seats look like two tries of one player.
                told = f"You are Player {seat}.\n{told}"
            if seat in own:
                messages[seat].append({"role": "user", "content": told})
                try:
                    turn = await context.generate(messages[seat])
                except ArealError as refusal:
                    if getattr(refusal, "code", None) not in LIMITS:
                        raise
                    out = seat
                    break
                messages[seat].append(turn.message)
                movers.append(seat)
                said = turn.text
            else:
                seen[seat] = f"{seen[seat]}\n{told}"
                said = random_move(name, seen[seat], chance, moves=self._moves)
            game.play(said)
            if game.is_over:
                break
        rewards = game.rewards()
        if out is not None:
            rewards[out] = -1.0  # whoever says too much to go on has lost
        return outcome_of(rewards, movers, own=own)


def outcome_of(rewards: Sequence[float], movers: Sequence[int], *, own: Sequence[int]) -> Outcome:
    """The verdict on a game, where `movers` are the seats of the model's turns, in order.

    If the model plays one seat, the episode has the reward of that seat. If the model plays several, each
    turn has to count with the reward of its own seat. A turn is trained with its own reward and all later ones, so
    a turn gets what its seat earned less what the seat of the next turn earned: the sum from any turn on is then
    what its own seat earned (with a discount of 1).

    >>> outcome_of([1.0, -1.0], [0, 1, 0], own=[0, 1]).turn_rewards
    (2.0, -2.0, 1.0)
    """
    if len(own) == 1:
        reward = rewards[own[0]]
        return Outcome.scored(reward, success=reward >= 1.0)
    metrics = {f"seat_{seat}": reward for seat, reward in enumerate(rewards)}
    if not movers:
        return Outcome.abstained("a limit left no room for a first move")
    following = [*(rewards[seat] for seat in movers[1:]), 0.0]
    by_turn = tuple(rewards[seat] - later for seat, later in zip(movers, following, strict=True))
    return Outcome.scored(rewards[movers[0]], turn_rewards=by_turn, metrics=metrics)
