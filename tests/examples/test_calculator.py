"""The quickstart's agent, on scripted tokens, through the real gateway and the plain tool format."""

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from areal_sdk import Episode, Task
from areal_sdk.models import make_tiny_model
from areal_sdk.testing import run_agent

calculator = importlib.import_module("examples.agents.calculator")

TASK = Task("t", {"question": "What is 123+456?", "expression": "123+456", "answer": "579"})
TEMPLATE = """\
{% for message in messages %}{{ '<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose template knows no tools, and in whose tokens a call is as short as in words."""
    directory = make_tiny_model(tmp_path_factory.mktemp("plain"))
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    path = str(directory / "tokenizer.json")
    tokenizer = Tokenizer.from_file(path)
    tokenizer.add_tokens(["calculator", '("', '")'])
    tokenizer.save(path)
    return directory


@pytest.fixture
def play(model_dir: Path) -> Any:
    async def play(*replies: str) -> Episode:
        return await run_agent(
            calculator.Calculator, TASK, engine=list(replies), model_dir=model_dir
        )

    return play


def verdict(episode: Episode) -> tuple[float | None, bool | None]:
    return episode.outcome.reward, episode.outcome.success


async def test_the_exact_call_and_the_exact_answer_earn_everything(play: Any) -> None:
    episode = await play('calculator("123+456")', "579")
    assert verdict(episode) == (1.0, True)
    assert [turn.parent for turn in episode.turns] == [None, 0]


async def test_the_model_reads_the_example_and_the_definitions(play: Any, model_dir: Path) -> None:
    episode = await play("579")
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    prompt = tokenizer.decode(list(episode.turns[0].prompt_tokens), skip_special_tokens=False)
    assert prompt == (
        "<|im_start|>system\n"
        "Use the calculator.\n\n"
        "Tools:\n"
        "calculator(expression: string): Evaluate an arithmetic expression.\n"
        "To call a tool, reply with just the call.<|im_end|>\n"
        "<|im_start|>user\nWhat is 11+22?<|im_end|>\n"
        '<|im_start|>assistant\ncalculator("11+22")<|im_end|>\n'
        "<|im_start|>user\nResult: 33<|im_end|>\n"
        "<|im_start|>assistant\n33<|im_end|>\n"
        "<|im_start|>user\nWhat is 123+456?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    ("replies", "expected"),
    [
        (["579"], (0.0, False)),
        (['calculator("1+1")', "2"], (0.0, False)),
        (['calculator("1+1")', "579"], (0.5, True)),
        (['calculator("123+456")', "580"], (0.5, False)),
        (['calculator("123+456") is what I call', "579"], (0.0, False)),
        (['calculator("123+456")'] * 3, (0.5, False)),
        (['calculator("123+")', 'calculator("123+456")', "579"], (1.0, True)),
    ],
    ids=str,
)
async def test_what_earns_what(play: Any, replies: list[str], expected: tuple[float, bool]) -> None:
    assert verdict(await play(*replies)) == expected


@pytest.mark.parametrize(
    ("arguments", "result"),
    [
        ('{"expression": "12 + 3*4"}', ("12+3*4", "24")),
        ('{"expression": "9**9**9"}', ("9**9**9", "error: not an arithmetic expression")),
        ('{"expression": "open(1)"}', ("open(1)", "error: not an arithmetic expression")),
        ('{"expression": "1+\\u0000"}', ("1+\0", "error: not an arithmetic expression")),
        ('{"expression": 12}', ("12", "12")),
        ('{"wrong": "1+1"}', ("", "error: no expression")),
        ("[]", ("", "error: no expression")),
        ("not json", ("", "error: no expression")),
    ],
)
def test_whatever_the_model_writes_the_tool_answers(
    arguments: str, result: tuple[str, str]
) -> None:
    assert calculator.calculate(arguments) == result


def test_a_deeply_nested_expression_is_an_error_too() -> None:
    expression = "(" * 5000 + "1" + ")" * 5000
    assert calculator.calculate(json.dumps({"expression": expression}))[1].startswith("error")


def operands(split: str) -> set[int]:
    text = " ".join(task.data["expression"] for task in calculator.tasks(split))
    return {int(number) for number in re.findall(r"\d+", text)}


def test_held_out_operands_are_never_trained() -> None:
    held_out = operands("eval") | operands("transfer")
    assert held_out <= calculator.HELD_OUT
    assert not operands("train") & calculator.HELD_OUT


def test_the_transfer_split_asks_for_an_operation_that_is_never_trained() -> None:
    for split, symbols in (("train", "+-"), ("eval", "+-"), ("transfer", "*")):
        found = {c for t in calculator.tasks(split) for c in t.data["expression"] if c in "+-*"}
        assert found == set(symbols)


def test_every_task_has_its_own_id_and_its_answer() -> None:
    for split in ("train", "eval", "transfer"):
        tasks = list(calculator.tasks(split))
        assert len({task.id for task in tasks}) == len(tasks) >= 100
        assert tasks == list(calculator.tasks(split))
        for task in tasks[:20]:
            a, symbol, b = re.split(r"([-+*])", task.data["expression"])
            value = {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[symbol]
            assert task.data["answer"] == str(value)
            assert task.data["expression"] in task.data["question"]
