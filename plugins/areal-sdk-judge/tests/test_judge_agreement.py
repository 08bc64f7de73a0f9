"""The check of a judge: agreement with labels, what it costs, and rows that are none."""

import asyncio
import json
import math
from collections.abc import AsyncIterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from judge_endpoint import Endpoint

from areal_sdk import ConfigError
from areal_sdk_judge import register_commands
from areal_sdk_judge.agreement import agreement_of, read_examples
from areal_sdk_judge.judge import Judgement

ROWS = [
    {"question": "2+2?", "answer": "4", "label": 1},
    {"question": "2+2?", "answer": "5", "label": 0},
    {"question": "2+2?", "answer": "four", "label": 0.9},
    {"question": "2+2?", "answer": "4", "other": "5", "label": 1},
]


def knows(prompt: str) -> str:
    """Knows digits only, and prefers the first of two answers if it has a 4."""
    if "answer A" in prompt:
        return '{"better": "A"}' if "answer A\n4" in prompt else '{"better": "B"}'
    return '{"score": 10}' if "answer\n4" in prompt else '{"score": 0}'


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    endpoint = Endpoint(knows)
    await endpoint.start()
    yield endpoint
    await endpoint.stop()


async def test_a_judge_is_compared_with_labels(endpoint: Endpoint, tmp_path: Path) -> None:
    file = tmp_path / "labelled.jsonl"
    file.write_text("\n".join(map(json.dumps, ROWS)))
    group = click.Group()
    register_commands(group)
    asked = ["judge", str(file), "--base-url", endpoint.url, "--model", "m", "--prompt-price", "2"]
    asked += ["--cache", str(tmp_path / "judge.sqlite")]
    result = await asyncio.to_thread(CliRunner().invoke, group, asked)
    assert result.exit_code == 0, result.output
    assert result.output.splitlines() == [
        "verdicts read       4 of 4",
        "on the label's side 0.75, beyond chance (kappa) 0.50",
        "mean difference     0.23",
        "pairs in one order  0.90",
        "tokens              550, cost 0.0010",
    ]
    again = await asyncio.to_thread(CliRunner().invoke, group, asked)
    assert again.output.splitlines()[-1] == "tokens              0, cost 0.0000"
    assert len(endpoint.prompts) == 5


async def test_a_slow_judge_is_given_the_time_that_is_asked_for(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    file = tmp_path / "labelled.jsonl"
    file.write_text(json.dumps(ROWS[0]))
    group = click.Group()
    register_commands(group)
    endpoint.together = asyncio.Barrier(2)  # the first request waits until it is asked again
    asked = ["judge", str(file), "--base-url", endpoint.url, "--model", "m", "--timeout-s", "1"]
    result = await asyncio.to_thread(CliRunner().invoke, group, asked)
    assert result.exit_code == 0, result.output
    assert len(endpoint.prompts) == 2, "the first one was given up"


def test_chance_is_no_agreement() -> None:
    labels = [0.0, 0.0, 1.0, 1.0]
    found = agreement_of([Judgement(value) for value in (0.0, 1.0, 0.0, 1.0)], labels)
    assert (found.same_side, found.kappa, found.same_order) == (0.5, 0.0, 0.5)
    perfect = agreement_of([Judgement(label) for label in labels], labels)
    assert (perfect.kappa, perfect.same_order, perfect.mean_difference) == (1.0, 1.0, 0.0)


def test_what_could_not_be_read_is_counted_and_not_guessed() -> None:
    found = agreement_of([Judgement(None), Judgement(1.0)], [0.0, 1.0])
    assert (found.num_examples, found.num_read, found.same_side) == (2, 1, 1.0)
    assert math.isnan(found.kappa)
    assert math.isnan(agreement_of([Judgement(None)], [0.0]).mean_difference)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no rows"),
        ('{"question": "?", "answer": "!"}', "rows.jsonl:1: KeyError"),
        ("[]", "rows.jsonl:1: "),
        ('{"question": "?", "answer": "!", "label": 7}', "label = 7.0: give a number from 0 to 1"),
    ],
)
def test_a_row_that_is_none_is_named(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_examples(file)


def test_the_labelled_answers_of_the_example_are_read() -> None:
    examples = read_examples(Path(__file__).parents[1] / "examples" / "labelled.jsonl")
    assert [example.label for example in examples] == [1, 0] * 12
    assert len({example.answer for example in examples}) == 24
