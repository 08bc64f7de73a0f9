"""Data files: what is read, and what is refused with its line and the cure."""

from pathlib import Path

import datasets
import orjson
import pyarrow
import pytest
from pyarrow import parquet

from areal_sdk.builtin.rows import is_saved_dataset
from areal_sdk.errors import ConfigError
from areal_sdk.gateway.errors import ApiError
from areal_sdk.gateway.sessions.canonical import canonical
from areal_sdk.loop.plan.rows import read_conversations, read_pairs
from areal_sdk.types import Message

ASKED = {"role": "user", "content": "1+1?"}
SAID = {"role": "assistant", "content": "2"}
CALL = {"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
WEIGHTS: tuple[object, ...] = ("0", 0.5, 2, False, [])
"""Weights that are refused."""


def call_with(arguments: str | None) -> dict[str, object]:
    return {**CALL, "function": {"name": "add", "arguments": arguments}}


def written(path: Path, *rows: object) -> Path:
    path.write_bytes(
        b"\n".join(row if isinstance(row, bytes) else orjson.dumps(row) for row in rows)
    )
    return path


def test_conversations_come_with_their_tools_and_their_line(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "add"}}
    calls = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    rows = [
        {"messages": [ASKED, SAID]},
        b"",
        {"messages": [ASKED, calls, {"role": "tool", "content": "2"}, SAID], "tools": [tool]},
        {"prompt": "1+1?", "completion": "2"},
    ]
    plain, with_tools, of_texts = read_conversations(written(tmp_path / "rows.jsonl", *rows))
    assert plain.messages == of_texts.messages == (ASKED, SAID)
    assert with_tools.tools == (tool,)
    assert with_tools.where.endswith("rows.jsonl, line 3")


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [ASKED], "chosen": "2", "rejected": "3"},
        {"prompt": "1+1?", "chosen": "2", "rejected": {"role": "assistant", "content": "3"}},
        {"prompt": [ASKED], "chosen": [SAID], "rejected": [{**SAID, "content": "3"}]},
        {"chosen": [ASKED, SAID], "rejected": [ASKED, {**SAID, "content": "3"}]},
    ],
)
def test_a_pair_is_written_in_any_usual_way(tmp_path: Path, row: object) -> None:
    [pair] = read_pairs(written(tmp_path / "pairs.jsonl", row))
    assert (pair.messages, pair.chosen) == ((ASKED,), (SAID,))
    assert pair.rejected[0]["content"] == "3"


def test_a_system_column_is_kept_unless_the_messages_say_the_same(tmp_path: Path) -> None:
    told = {"role": "system", "content": "Be brief."}
    rows = [
        {"system": "Be brief.", "messages": [ASKED, SAID]},
        {"system": "Be brief.", "messages": [told, ASKED, SAID]},
        {"system": "", "prompt": "1+1?", "completion": "2"},
        {"system": None, "messages": [ASKED, SAID]},
    ]
    found = read_conversations(written(tmp_path / "rows.jsonl", *rows))
    assert [row.system for row in found] == ["Be brief.", "", "", ""]
    pair = {"system": "Be brief.", "prompt": "1+1?", "chosen": "2", "rejected": "3"}
    [compared] = read_pairs(written(tmp_path / "pairs.jsonl", pair))
    assert compared.system == "Be brief."


IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (
            [{"type": "text", "text": "1+1?"}, IMAGE],
            "content[1]: content parts of type 'image_url'",
        ),
        ([IMAGE], "content[0]: content parts of type 'image_url'"),
        ([{"type": "foo"}], "content[0]: content parts of type 'foo'"),
        ([{"type": "text", "text": 1}], "content[0]: content parts of type 'text'"),
        ([1], "content[0]: a content part must be an object"),
        ({"text": "hi"}, "content must be a string, null or a list of parts"),
        (42, "content must be a string, null or a list of parts"),
    ],
)
@pytest.mark.parametrize("index", [0, 1])
def test_rows_hold_no_content_that_the_gateway_refuses(
    tmp_path: Path, content: object, problem: str, index: int
) -> None:
    messages: list[dict[str, object]] = [dict(ASKED), dict(SAID)]
    messages[index]["content"] = content
    with pytest.raises(ApiError) as refused:
        canonical(messages[index], where=f"messages[{index}]")
    bad = {"messages": messages}
    path = written(tmp_path / "rows.jsonl", {"messages": [ASKED, SAID]}, bad)
    with pytest.raises(ConfigError) as caught:
        read_conversations(path)
    assert f"{path}, line 2: messages[{index}].{problem}" in str(caught.value)
    assert str(refused.value) in str(caught.value)
    if index:
        pair = {"messages": [ASKED], "chosen": "2", "rejected": messages[1:]}
        where = "rejected[0]"
    else:
        pair = {"messages": messages[:1], "chosen": "2", "rejected": "3"}
        where = "messages[0]"
    with pytest.raises(ConfigError) as caught:
        read_pairs(written(tmp_path / "pairs.jsonl", pair))
    assert f"line 1: {where}.{problem}" in str(caught.value)


def test_parts_of_text_are_one_text(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": text} for text in ("1+", "1?")]
    said = [{"type": "refusal", "refusal": "2"}]
    row = {"messages": [{**ASKED, "content": parts}, {**SAID, "content": said}]}
    [found] = read_conversations(written(tmp_path / "rows.jsonl", row))
    assert found.messages == (ASKED, SAID)


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
def test_thoughts_are_read_under_any_usual_name(tmp_path: Path, name: str) -> None:
    row = {"messages": [ASKED, {**SAID, name: "One and one."}]}
    [found] = read_conversations(written(tmp_path / "rows.jsonl", row))
    assert found.messages[1]["reasoning_content"] == "One and one."


@pytest.mark.parametrize(
    ("weight", "is_trained"), [(0, False), (0.0, False), (1, True), (1.0, True), (None, True)]
)
def test_a_weight_is_0_or_1(tmp_path: Path, weight: object, is_trained: bool) -> None:
    messages = [ASKED, {**SAID, "weight": weight}]
    [found] = read_conversations(written(tmp_path / "rows.jsonl", {"messages": messages}))
    assert found.messages[1].get("weight", 1) == is_trained


SYSTEM = {"role": "system", "content": "Be brief."}
AGAIN = {"role": "user", "content": "2+1?"}
WRONG = {"role": "assistant", "content": "3"}


@pytest.mark.parametrize(
    ("row", "before"),
    [
        ({"prompt": "1+1?"}, [ASKED]),
        ({"prompt": " 1+1?\n"}, [ASKED]),
        ({"prompt": [ASKED]}, [ASKED]),
        ({"messages": [ASKED]}, [ASKED]),
        ({"prompt": "1+1?", "messages": [ASKED, SAID]}, [ASKED]),
        ({"prompt": [SYSTEM, ASKED]}, [SYSTEM, ASKED]),
        ({"prompt": [ASKED], "told": [SYSTEM]}, [SYSTEM, ASKED]),
        ({"prompt": [SYSTEM, ASKED], "told": [SYSTEM]}, [SYSTEM, ASKED]),
        ({"prompt": [ASKED, SAID, AGAIN], "told": [], "more": [SAID, AGAIN]}, [ASKED, SAID, AGAIN]),
    ],
)
def test_a_prompt_beside_whole_conversations_comes_once(
    tmp_path: Path, row: dict[str, list[object]], before: list[dict[str, str]]
) -> None:
    """Data of preferences are like this: `prompt` repeats what both conversations begin with."""
    begun = [*row.pop("told", []), ASKED, *row.pop("more", [])]
    whole = {**row, "chosen": [*begun, SAID], "rejected": [*begun, WRONG]}
    [pair] = read_pairs(written(tmp_path / "pairs.jsonl", whole))
    assert (pair.messages, pair.chosen, pair.rejected) == (tuple(before), (SAID,), (WRONG,))
    [mixed] = read_pairs(written(tmp_path / "mixed.jsonl", {**whole, "rejected": "3"}))
    assert (mixed.messages, mixed.chosen, mixed.rejected) == (tuple(before), (SAID,), (WRONG,))
    asked = {**row, "completion": [*begun, SAID]}
    if "messages" not in asked:
        [conversation] = read_conversations(written(tmp_path / "rows.jsonl", asked))
        context = [{**m, "weight": 0} if m["role"] == "assistant" else m for m in before]
        assert conversation.messages == (*context, SAID), "only the completion is trained"


def test_what_the_assistant_says_in_a_prompt_is_context(tmp_path: Path) -> None:
    """A prompt with examples, or with a wrong answer that is to be mended, is not imitated."""
    row = {"prompt": [ASKED, WRONG, AGAIN], "completion": [SAID]}
    [found] = read_conversations(written(tmp_path / "rows.jsonl", row))
    assert [message.get("weight", 1) for message in found.messages] == [1, 0, 1, 1]


@pytest.mark.parametrize(
    ("shared", "chosen", "rejected"),
    [
        ([ASKED, SAID, AGAIN], [WRONG], [{**WRONG, "content": "3 "}]),
        ([ASKED, SAID, AGAIN], [WRONG], [SAID]),
        ([ASKED], [SAID, AGAIN, WRONG], [WRONG, AGAIN, SAID]),
        ([ASKED], [SAID, AGAIN, WRONG], [SAID]),
        (
            [SYSTEM, ASKED],
            [
                {"role": "assistant", "content": "", "tool_calls": [CALL]},
                {"role": "tool", "content": "2"},
                SAID,
            ],
            [WRONG],
        ),
    ],
)
def test_whole_conversations_part_where_the_assistant_answers(
    tmp_path: Path, shared: list[dict[str, str]], chosen: list[object], rejected: list[object]
) -> None:
    spaced = [{**shared[0], "content": f" {shared[0]['content']}"}, *shared[1:]]
    row = {"chosen": [*shared, *chosen], "rejected": [*spaced, *rejected]}
    [pair] = read_pairs(written(tmp_path / "pairs.jsonl", row))
    assert [*pair.messages] == shared
    assert ([*pair.chosen], [*pair.rejected]) == (chosen, rejected)


def test_turns_after_the_prompt_belong_to_the_answers(tmp_path: Path) -> None:
    row = {"prompt": "1+1?", "chosen": [ASKED, SAID, AGAIN, WRONG], "rejected": [ASKED, WRONG]}
    [pair] = read_pairs(written(tmp_path / "pairs.jsonl", row))
    assert (pair.messages, pair.chosen, pair.rejected) == ((ASKED,), (SAID, AGAIN, WRONG), (WRONG,))


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (b"{", "line 2: not valid JSON"),
        ([1], "line 2: a conversation is a JSON object, not list"),
        ({"text": "hi"}, "no \"messages\" (it has 'text')"),
        ({"messages": []}, "'messages' is not a list of messages"),
        ({"messages": [ASKED]}, "no assistant message to learn from"),
        ({"messages": [SAID]}, "it begins with the assistant"),
        ({"messages": [{"role": "bot"}]}, "messages[0].role is 'bot'"),
        ({"messages": [ASKED, {"role": "assistant"}]}, "neither content nor tool_calls"),
        (
            {"messages": [ASKED, {"role": "assistant", "tool_calls": [{"id": 1}]}]},
            "messages[1].tool_calls must hold objects with a function name",
        ),
        *(
            ({"messages": [ASKED, {**SAID, "weight": weight}]}, f"messages[1].weight is {weight!r}")
            for weight in WEIGHTS
        ),
        *(
            (
                {"messages": [ASKED, {**SAID, "tool_calls": [call_with(arguments)]}]},
                f"messages[1].tool_calls: the arguments {arguments!r} of 'add' are no JSON object",
            )
            for arguments in ("{not json", "[1]", "", None)
        ),
        ({"messages": [ASKED, SAID], "tools": "add"}, '"tools" is not a list'),
        ({"messages": [ASKED, SAID], "system": 1}, '"system" is not a text'),
        (
            {"messages": [{"role": "system", "content": "a"}, ASKED, SAID], "system": "b"},
            '"system" is not what the system message says: keep one of them',
        ),
        (
            {"messages": [ASKED, {**SAID, "thinking": ["a"]}]},
            "messages[1] has a thinking that is not",
        ),
    ],
)
def test_a_bad_conversation_is_refused_with_its_line(
    tmp_path: Path, row: object, problem: str
) -> None:
    path = written(tmp_path / "rows.jsonl", {"messages": [ASKED, SAID]}, row)
    with pytest.raises(ConfigError) as caught:
        read_conversations(path)
    assert f"{path}, line 2: " in str(caught.value)
    assert problem in str(caught.value)
    assert '{"messages": [{"role": "user"' in str(caught.value)  # what to write


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"messages": [ASKED], "chosen": "2"}, "no 'rejected' (it has 'messages', 'chosen')"),
        ({"chosen": "2", "rejected": "3"}, 'no "messages" that come before the answers'),
        ({"messages": [ASKED, SAID], "chosen": "2", "rejected": "3"}, "ends with the assistant"),
        ({"prompt": "1+1?", "chosen": [ASKED], "rejected": "3"}, "'chosen' ends with 'user'"),
        (
            {"prompt": "1+2?", "chosen": [ASKED, SAID], "rejected": "3"},
            "'chosen' begins with 'user', and not with the prompt",
        ),
        (
            {
                "prompt": [SYSTEM, ASKED],
                "chosen": [{**SYSTEM, "content": ""}, ASKED, SAID],
                "rejected": "3",
            },
            "'chosen' begins with 'system', and not with the prompt",
        ),
        (
            {"prompt": [ASKED], "chosen": [SYSTEM, ASKED, SAID], "rejected": [ASKED, WRONG]},
            "'chosen' and 'rejected' begin differently",
        ),
        (
            {"chosen": [SYSTEM, ASKED, SAID], "rejected": [SYSTEM, AGAIN, WRONG]},
            "'chosen' and 'rejected' begin differently, before they answer",
        ),
        (
            {"chosen": [ASKED, SAID, AGAIN, WRONG], "rejected": [ASKED, SAID, ASKED, SAID]},
            "'chosen' and 'rejected' begin differently, before they answer",
        ),
        (
            {"chosen": [ASKED, AGAIN, WRONG], "rejected": [ASKED, SAID]},
            "'chosen' and 'rejected' begin differently, before they answer",
        ),
    ],
)
def test_a_bad_pair_is_refused_with_its_line(tmp_path: Path, row: object, problem: str) -> None:
    with pytest.raises(ConfigError, match="line 1: ") as caught:
        read_pairs(written(tmp_path / "pairs.jsonl", row))
    assert problem in str(caught.value)


def test_a_file_that_is_not_there_or_empty_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such data"):
        read_pairs(tmp_path / "missing.jsonl")
    with pytest.raises(ConfigError, match="is empty: write"):
        read_conversations(written(tmp_path / "empty.jsonl", b""))


def test_conversations_come_from_any_file_that_tasks_come_from(tmp_path: Path) -> None:
    """Tables write null where a message has no such field."""
    expected: list[tuple[Message, ...]] = [(ASKED, SAID), (AGAIN, {**WRONG, "weight": 0})]
    rows = [{"messages": list(messages)} for messages in expected]
    listed = tmp_path / "rows.json"
    listed.write_bytes(orjson.dumps(rows))
    table = pyarrow.Table.from_pylist(rows)
    parquet.write_table(table, tmp_path / "rows.parquet")
    for path in (listed, tmp_path / "rows.parquet"):
        assert [row.messages for row in read_conversations(path)] == expected
    texts = tmp_path / "rows.csv"
    texts.write_text('prompt,completion\n1+1?,2\n"2,1","3\n4"\n')
    first, second = read_conversations(texts)
    assert first.messages == (ASKED, SAID)
    assert [message["content"] for message in second.messages] == ["2,1", "3\n4"]
    assert second.where.endswith("rows.csv, row 2 (line 4)")


def test_pairs_come_from_a_saved_dataset(tmp_path: Path) -> None:
    rows = [{"prompt": "1+1?", "chosen": "2", "rejected": "3"}]
    datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "pairs")
    assert is_saved_dataset(tmp_path / "pairs")
    [pair] = read_pairs(tmp_path / "pairs")
    assert (pair.messages, pair.chosen) == ((ASKED,), (SAID,))
