"""The built-in agent asks what a row has, in the form of any trainer's rows."""

from typing import Any, cast

import pytest

from areal_sdk.agent import EpisodeContext
from areal_sdk.builtin.chat import Chat
from areal_sdk.builtin.tasks import read_tasks
from areal_sdk.types import Message, Task

ASKED = {"role": "user", "content": "1+1?"}


async def asked(data: dict[str, Any], **options: str) -> list[Message]:
    sent: list[Message] = []

    class Context:
        async def generate(self, messages: list[Message]) -> None:
            sent.extend(messages)

    await Chat(**options).run(Task("t", data), cast(EpisodeContext, Context()))
    return sent


@pytest.mark.parametrize(
    "data",
    [
        {"messages": [ASKED]},
        {"prompt": "1+1?", "solution": "2"},
        {"prompt": [ASKED], "solution": "2"},  # TRL's conversational rows
        {"question": "1+1?", "answer": "2"},
    ],
)
async def test_a_row_is_asked_in_whatever_form_it_has(data: dict[str, Any]) -> None:
    assert await asked(data) == [ASKED]
    assert await asked(data, system="Add.") == [{"role": "system", "content": "Add."}, ASKED]


async def test_a_column_that_a_flag_names_is_asked(tmp_path: Any) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "1+1?", "text": "-"}\n')
    [task] = read_tasks(rows, fields={"question": "prompt"})
    assert await asked(dict(task.data)) == [ASKED]


async def test_of_several_fields_the_one_that_is_named_is_asked() -> None:
    data = {"question": "1+1", "prompt": "1+1?", "problem": [ASKED, ASKED]}
    assert await asked(data) == [ASKED]
    assert await asked(data, field="problem") == [ASKED, ASKED]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (
            {"problem": "1+1?", "solution": "2"},
            "task 't' has no 'messages' or 'prompt' or 'question' for the chat agent; it has: problem, "
            "solution; name what it asks: --set agent.field=COLUMN",
        ),
        (
            {"prompt": {"text": "1+1?"}},
            "task 't': 'prompt' is a text or a list of messages, not dict",
        ),
    ],
)
async def test_a_row_that_asks_nothing_is_refused_with_the_cure(
    data: dict[str, Any], told: str
) -> None:
    with pytest.raises(ValueError, match="^" + told.replace("?", r"\?")):
        await asked(data)
