"""Evaluations side by side: which tasks are the same, their paired difference, and the order of the rows."""

from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from view_runs import evaluate

from areal_sdk_view.answers.held_out import mean_of


async def compare(client: aiohttp.ClientSession, query: str, status: int = 200) -> Any:
    async with client.get(f"/api/compare/tasks?{query}") as response:
        assert response.status == status, await response.text()
        return await response.json()


async def test_tasks_of_two_runs_are_paired_by_what_they_ask_and_those_that_changed_most_come_first(
    client: aiohttp.ClientSession, runs: Path
) -> None:
    evaluate(runs / "guess-1", step=6, rewards={"a": [1, 1], "b": [0, 0], "c": [1, 0], "d": [1]})
    evaluate(
        runs / "guess-2",
        step=6,
        rewards={"a": [0, 1], "b": [1, 1], "c": [0, 1], "e": [1]},
        prefix="other-",  # the ids of the tasks differ, and what they ask does not
    )
    answer = await compare(client, "run=guess-1&run=guess-2")
    assert answer["num_common"] == 3
    rows = [(row["task"], row["change"]["value"]) for row in answer["rows"]]
    assert rows == [("b", 1.0), ("a", -0.5), ("c", 0.0)]
    first, second = answer["sides"]
    assert (first["num_tasks"], first["num_attempts"], first["change"]) == (4, 7, None)
    assert first["success"]["value"] == 0.5
    assert second["change"]["value"] == pytest.approx(1 / 6)
    assert (second["num_better"], second["num_worse"]) == (1, 1)
    (one, other) = answer["rows"][1]["sides"]
    assert (one["num_success"], other["num_success"], other["num"]) == (2, 1, 2)
    assert (one["episode"], other["episode"]) == ("step-6.a.0", "step-6.other-a.0")


async def test_two_evaluations_of_one_run_are_compared_and_what_was_not_scored_is_told(
    client: aiohttp.ClientSession, runs: Path
) -> None:
    evaluate(runs / "guess-1", step=0, rewards={"a": [0], "b": [1], "c": [1]})
    evaluate(runs / "guess-1", step=4, rewards={"a": [1], "b": [1, None], "c": [None]})
    answer = await compare(client, "run=guess-1&run=guess-1&step=first&step=last")
    assert [side["step"] for side in answer["sides"]] == [0, 4]
    assert [row["task"] for row in answer["rows"]] == ["a", "b"]
    assert answer["sides"][1]["num_unscored"] == 2
    assert answer["rows"][1]["sides"][1]["num_unscored"] == 1
    for query, status in (
        ("run=guess-1", 400),
        ("run=guess-1&run=guess-1&step=first&step=x", 400),
        ("run=guess-1&run=guess-1&step=first&step=3", 404),
        ("run=guess-1&run=guess-2", 404),
        ("run=guess-1&run=nothing", 404),
    ):
        await compare(client, query, status)


@pytest.mark.parametrize(("num", "half"), [(36, 0.0973), (1, 0.975)])
def test_where_no_task_changed_the_interval_is_exact(num: int, half: float) -> None:
    found = mean_of([0.0] * num, low=-1.0, high=1.0)
    assert found == {
        "value": 0.0,
        "low": pytest.approx(-half, abs=1e-4),
        "high": pytest.approx(half, abs=1e-4),
    }


def test_an_interval_of_95_percent_holds_the_difference_19_times_of_20() -> None:
    generator, held, trials = np.random.default_rng(1), 0, 400
    for _ in range(trials):
        changes = generator.choice([-1.0, 0.0, 1.0], p=[0.1, 0.6, 0.3], size=60)
        found = mean_of(changes.tolist(), low=-1.0, high=1.0)
        held += found["low"] <= 0.2 <= found["high"]
    assert 0.92 < held / trials < 0.98
