"""Data files: what is read, and what is refused with its line and the cure."""

from pathlib import Path

import orjson
import pytest

from areal_sdk.errors import ConfigError
from areal_sdk.loop.plan.rows import read_conversations, read_pairs

ASKED = {"role": "user", "content": "1+1?"}
SAID = {"role": "assistant", "content": "2"}
CALL = {"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}


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


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
def test_thoughts_are_read_under_any_usual_name(tmp_path: Path, name: str) -> None:
    row = {"messages": [ASKED, {**SAID, name: "One and one."}]}
    [found] = read_conversations(written(tmp_path / "rows.jsonl", row))
    assert found.messages[1]["reasoning_content"] == "One and one."


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
    tmp_path: Path, row: dict[str, list[object]], before: list[object]
) -> None:
    """As in data of preferences where `prompt` repeats what both conversations begin with."""
    begun = [*row.pop("told", []), ASKED, *row.pop("more", [])]
    whole = {**row, "chosen": [*begun, SAID], "rejected": [*begun, WRONG]}
    [pair] = read_pairs(written(tmp_path / "pairs.jsonl", whole))
    assert (pair.messages, pair.chosen, pair.rejected) == (tuple(before), (SAID,), (WRONG,))
    [mixed] = read_pairs(written(tmp_path / "mixed.jsonl", {**whole, "rejected": "3"}))
    assert (mixed.messages, mixed.chosen, mixed.rejected) == (tuple(before), (SAID,), (WRONG,))
    asked = {**row, "completion": [*begun, SAID]}
    if "messages" not in asked:
        [conversation] = read_conversations(written(tmp_path / "rows.jsonl", asked))
        assert conversation.messages == (*before, SAID)


def test_turns_after_the_prompt_belong_to_the_answers(tmp_path: Path) -> None:
    row = {"prompt": "1+1?", "chosen": [ASKED, SAID, AGAIN, WRONG], "rejected": [ASKED, WRONG]}
    [pair] = read_pairs(written(tmp_path / "pairs.jsonl", row))
    assert (pair.messages, pair.chosen, pair.rejected) == ((ASKED,), (SAID, AGAIN, WRONG), (WRONG,))


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (b"{", "line 2: not JSON"),
        ([1], "line 2: not a JSON object"),
        ({"text": "hi"}, "no \"messages\" (it has 'text')"),
        ({"messages": []}, "'messages' is not a list of messages"),
        ({"messages": [ASKED]}, "no assistant message to learn from"),
        ({"messages": [SAID]}, "it begins with the assistant"),
        ({"messages": [{"role": "bot"}]}, "messages[0] has the role 'bot'"),
        ({"messages": [ASKED, {"role": "assistant"}]}, "neither content nor tool_calls"),
        (
            {"messages": [ASKED, {"role": "assistant", "tool_calls": [{"id": 1}]}]},
            "messages[1] has a tool call without",
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
