"""Games are played as their rules say, side by side, and each seat learns from its own outcome."""

import random
from typing import Any

import pytest

from areal_sdk import ConfigError, Outcome, Task
from areal_sdk.testing import check_plugin, check_workflow, registered, run_agent

pytest.importorskip("textarena", reason="pip install textarena (39 MB, 17 packages)")

from areal_sdk_textarena.agent import TextArena, outcome_of
from areal_sdk_textarena.dataset import tasks
from areal_sdk_textarena.games import Game, game_names
from areal_sdk_textarena.opponents import legal_moves, random_move


def a_task(game: str, **data: Any) -> Task:
    return Task("t", {"game": game, "players": 2, "seat": 0, "seed": 7, **data})


def returns(outcome: Outcome) -> list[float]:
    """The return of each turn in training: its own reward and all later ones."""
    given = [reward or 0.0 for reward in outcome.turn_rewards]
    return [sum(given[turn:]) for turn in range(len(given))]


async def test_in_self_play_each_turn_has_the_outcome_of_its_own_seat() -> None:
    replies = ["[0]", "[3]", "[1]", "[4]", "I win: [2]"]
    episode = await check_workflow(TextArena, a_task("TicTacToe-v0"), replies=replies)
    assert returns(episode.outcome) == [1.0, -1.0, 1.0, -1.0, 1.0]
    assert episode.reward == 1.0
    assert dict(episode.outcome.metrics) == {"seat_0": 1.0, "seat_1": -1.0}


async def test_an_illegal_move_is_told_and_the_second_one_loses() -> None:
    replies = ["[0]", "[0]", "[0]"]
    episode = await run_agent(TextArena, a_task("TicTacToe-v0"), engine=replies)
    assert returns(episode.outcome) == [1.0, -1.0, -1.0]
    told = str(episode.messages[-2]["content"])
    assert "invalid move" in told


async def test_seats_see_the_moves_of_others_and_not_their_prompts() -> None:
    episode = await run_agent(TextArena, a_task("Nim-v0"), engine=["[0 3]", "[1 4]", "[2 5]"])
    first, second, third = episode.turns
    assert str(first.new_messages[0]["content"]).startswith("You are Player 0.\nWelcome to Nim")
    assert str(second.new_messages[0]["content"]).startswith("You are Player 1.\nWelcome to Nim")
    assert "[Player 0] [0 3]" in str(second.new_messages[0]["content"])
    (seen,) = third.new_messages  # its first conversation goes on
    assert third.parent == 0
    assert "[Player 1] [1 4]" in str(seen["content"])
    assert returns(episode.outcome) == [1.0, -1.0, 1.0]


async def test_against_chance_only_the_models_seat_is_played() -> None:
    class AgainstChance(TextArena):
        def __init__(self) -> None:
            super().__init__(opponent="random")

    for seat in (0, 1):
        task = a_task("TicTacToe-v0", seat=seat)
        episodes = [await run_agent(AgainstChance, task, engine="[4]") for _ in range(2)]
        for episode in episodes:
            assert f"Player {seat}" in str(episode.messages[0]["content"])
            assert episode.outcome.turn_rewards == ()
            assert episode.reward == -1.0  # the middle again is illegal, twice
            assert episode.outcome.success is False
        assert episodes[0].messages == episodes[1].messages


async def test_a_game_of_one_player_is_played_to_its_end() -> None:
    task = a_task("GuessTheNumber-v0", players=1)
    replies = [f"[{number}]" for number in range(1, 11)]
    episode = await run_agent(TextArena, task, engine=[*replies, *replies])
    assert episode.reward is not None
    assert episode.outcome.turn_rewards == ()


async def test_a_game_of_three_is_played_by_one_model() -> None:
    task = a_task("ThreePlayerTicTacToe-v0", players=3)
    episode = await run_agent(TextArena, task, engine=["[0 0]", "[1 1]", "[2 2]", *["[9 9]"] * 20])
    assert {"seat_0", "seat_1", "seat_2"} == set(episode.outcome.metrics)


async def test_a_game_without_an_end_is_a_draw() -> None:
    class Short(TextArena):
        def __init__(self) -> None:
            super().__init__(max_moves=2)

    episode = await run_agent(Short, a_task("Nim-v0"), engine="[0 1]")
    assert returns(episode.outcome) == [0.0, 0.0]


async def test_a_limit_of_the_run_loses_the_game() -> None:
    replies = ["[0 1]", "[1 1]"]
    episode = await run_agent(TextArena, a_task("Nim-v0"), engine=replies, max_turns=2)
    assert episode.truncated
    assert returns(episode.outcome) == [-1.0, 0.0]


def test_the_outcome_of_two_who_both_win_is_given_to_both() -> None:
    assert outcome_of([0.5, 0.5], [0, 1, 0, 1], own=[0, 1]).turn_rewards == (0.0, 0.0, 0.0, 0.5)


def transcript(name: str, *, seed: int, beside: bool) -> list[str]:
    """The text that a seeded game shows; `beside`: another game draws in between, and so does the
    test."""
    game = Game(name, players=2, seed=seed)
    other = Game(name, players=2, seed=seed + 1) if beside else None
    shown = []
    for _ in range(6):
        shown.append(f"{game.seat} {game.observe()}")
        game.play("[check]")
        if other is not None and not other.is_over:
            random.random()
            other.observe()
            other.play("[bet]")
        if game.is_over:
            break
    return shown


def test_games_side_by_side_do_not_share_their_chance() -> None:
    before = random.getstate()
    alone = transcript("KuhnPoker-v0", seed=3, beside=False)
    assert random.getstate() == before
    assert transcript("KuhnPoker-v0", seed=3, beside=True) == alone
    cards = {transcript("KuhnPoker-v0", seed=seed, beside=False)[0] for seed in range(10)}
    assert len(cards) > 1


def test_chance_makes_legal_moves_of_games_that_show_them() -> None:
    for name in ("TicTacToe-v0", "Nim-v0", "ConnectFour-v0", "KuhnPoker-v0"):
        game, chance, seen = Game(name, players=2, seed=1), random.Random(0), ["", ""]
        for _ in range(60):
            seat, told = game.seat, game.observe()
            assert "invalid" not in told
            seen[seat] += f"\n{told}"
            game.play(random_move(name, seen[seat], chance))
            if game.is_over:
                break
        assert game.is_over
        assert sorted(game.rewards()) in ([-1.0, 1.0], [0.0, 0.0])
    assert legal_moves("IteratedRockPaperScissors-v0", "Play.") == []
    with pytest.raises(ConfigError, match="does not list its moves"):
        random_move("IteratedRockPaperScissors-v0", "Play.", random.Random(0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"games": []}, "name at least one"),
        ({"games": "TicTacTo-v0"}, "textarena has no game 'TicTacTo-v0'; it has "),
        ({"games": "TicTacToe-v0", "players": 3}, "TicTacToe-v0 with 3 players"),
        ({"games": "Nim-v0", "arguments": {"pile": [1]}}, "cannot make Nim-v0 with {'pile'"),
        ({"games": "Nim-v0", "seed": 10**7}, "choose a smaller one"),
    ],
)
def test_wrong_tasks_are_refused_before_the_run(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        next(tasks("train", **options))


def test_seats_go_round_and_seeds_of_the_splits_are_apart() -> None:
    train, held_out = (
        list(tasks(split, games=["Nim-v0", "TicTacToe-v0"])) for split in ("train", "eval")
    )
    assert [task.data["seat"] for task in train[:6]] == [0, 0, 1, 1, 0, 0]
    assert [task.source for task in train[:2]] == ["Nim-v0", "TicTacToe-v0"]
    assert not {t.data["seed"] for t in train} & {t.data["seed"] for t in held_out}
    assert len(game_names()) > 60


async def test_the_installed_plugin_keeps_every_contract() -> None:
    options = {"tasks.textarena": {"games": "TicTacToe-v0"}}
    assert registered("agent", "textarena", opponent="random")
    assert "agent 'textarena'" in await check_plugin("areal-sdk-textarena", options=options)
