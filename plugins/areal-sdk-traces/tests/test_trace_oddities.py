"""Exports as tools write them beyond the plain case: silent lines, lonely rows, half an input, cut answers."""

import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from trace_exports import EXPORTS, otlp

from areal_sdk_traces.book import Book, Fate
from areal_sdk_traces.choice import Choice, chosen
from areal_sdk_traces.command import traces
from areal_sdk_traces.conversation import Conversation
from areal_sdk_traces.readers import reader_of
from areal_sdk_traces.rows import read_rows

ASKED = [{"role": "user", "content": "Count."}]
HALF = {"role": "assistant", "content": "1, 2"}


def read(format: str, file: Path, rows: Iterable[Any]) -> tuple[list[Conversation], dict[str, str]]:
    """The conversations of the rows, and the fate and reason of each place in the book."""
    file.write_text("\n".join(map(json.dumps, rows)))
    book = Book()
    given = read_rows(str(file), book, stdin=io.BytesIO())
    found = [*chosen(reader_of(format)(given, book), book, choice=Choice(), mask=None)]
    book.close()
    assert not book.of(Fate.UNEXPLAINED)
    told = {str(one.place).rpartition(":")[2]: f"{one.fate}: {one.reason}" for one in book.entries}
    return found, told


def test_a_session_of_claude_code_goes_on_behind_lines_that_say_nothing(tmp_path: Path) -> None:
    def line(uuid: str, parent: str | None, kind: str, content: Any = None, **more: Any) -> Any:
        message = {"message": {"role": kind, "id": uuid, "content": content}} if content else {}
        row = {"type": kind, "uuid": uuid, "parentUuid": parent, "sessionId": "s"}
        return {**row, **message, **more}

    def say(text: str) -> list[Any]:
        return [{"type": "text", "text": text}]

    found, told = read(
        "claude-code",
        tmp_path / "s.jsonl",
        [
            line("h", None, "attachment"),
            line("1", "h", "user", "Hi"),
            line("2", "1", "assistant", say("Hello.")),
            line("e", "2", "assistant", say("API Error: 529"), isApiErrorMessage=True),
            line("n", "e", "system", subtype="turn_duration"),
            {"type": "queue-operation"},
            line("3", "n", "user", "Go on"),
            line("4", "3", "assistant", say("On.")),
            line("b", None, "system", subtype="compact_boundary"),
            line("5", "b", "user", "They greeted.", isCompactSummary=True),
            line("6", "5", "assistant", say("Yes.")),
        ],
    )
    assert [[m["content"] for m in one.messages] for one in found] == [
        ["Hi", "Hello.", "Go on", "On."],
        ["They greeted.", "Yes."],
    ]
    assert found[1].link is not None
    assert found[1].link.relation == "compaction"
    assert {reason.partition(":")[0] for reason in told.values()} == {"no message"}


def test_rows_of_langfuse_beside_the_calls_are_named_or_kept(tmp_path: Path) -> None:
    call = {**EXPORTS["langfuse"](1)[0], "trace_id": "t"}
    score = {"id": "s", "name": "helpful", "comment": "Thanks!", "value": 1}
    found, told = read(
        "langfuse",
        tmp_path / "a.jsonl",
        [
            call,
            {**score, "trace_id": "t"},
            {**score, "trace_id": "gone"},
            {"id": "empty", "observations": []},
            {"id": "odd", "observations": [7]},
            {**call, "trace_id": "half", "input": call["input"][:-5]},
        ],
    )
    (one,) = found
    assert one.comments == ("Thanks!",)
    assert told["3"] == "no message: about 'gone', of which no generation was read"
    assert told["4"] == "no message: about 'empty', of which no generation was read"
    assert told["5, observation 0"] == "damaged: the row is a number, not an object"
    assert told["6"] == "damaged: the input is JSON that breaks off"


def cut_off(format: str) -> Any:
    if format == "claude-code":
        message = {**HALF, "id": "m", "content": [{"type": "text", "text": "1, 2"}]}
        row = {"sessionId": "s", "type": "assistant", "uuid": "2", "parentUuid": "1"}
        first = {"sessionId": "s", "type": "user", "uuid": "1", "message": ASKED[0]}
        return [first, {**row, "message": {**message, "stop_reason": "max_tokens"}}]
    choice = {"message": HALF, "finish_reason": "length"}
    if format == "otel":
        said = {"role": "assistant", "parts": [{"type": "text", "content": "1, 2"}]}
        asked = {"role": "user", "parts": [{"type": "text", "content": "Count."}]}
        attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.input.messages": json.dumps([asked]),
            "gen_ai.output.messages": json.dumps([{**said, "finish_reason": "length"}, said]),
        }
        return [otlp(1, 0, attributes)]
    if format == "langfuse":
        about = {"id": "o", "trace_id": "t", "type": "GENERATION", "input": ASKED}
        return [{**about, "output": {"choices": [choice, choice]}}]
    run = {"id": "r", "run_type": "llm", "inputs": {"messages": ASKED}}
    made = {"message": HALF, "generation_info": {"finish_reason": "length"}}
    return [{**run, "outputs": {"generations": [[made, made]]}}]


@pytest.mark.parametrize("format", ["claude-code", "otel", "langfuse", "langsmith"])
def test_a_cut_answer_is_context_and_other_choices_are_named(format: str, tmp_path: Path) -> None:
    (one,), told = read(format, tmp_path / "a.jsonl", cut_off(format))
    assert [*one.messages] == [*ASKED, {**HALF, "weight": 0}]
    (reason,) = told.values()
    assert reason == "part lost: an answer that was cut off is context"


def test_calls_without_a_trace_do_not_hang_on_each_other(tmp_path: Path) -> None:
    found, _ = read("openai", tmp_path / "a.jsonl", EXPORTS["openai"](1) + EXPORTS["openai"](2))
    assert [one.link for one in found] == [None, None]


def test_a_batch_names_both_halves_of_a_request_that_failed(tmp_path: Path) -> None:
    asked = {"custom_id": "a", "body": {"messages": ASKED}}
    reply = {"custom_id": "a", "response": {"status_code": 429, "body": {}}}
    _, told = read("openai", tmp_path / "a.jsonl", [asked, reply])
    assert told["1"] == "damaged: the request failed with status 429"
    assert told["2"] == "damaged: the request failed with status 429"


def test_a_session_of_codex_may_end_in_a_compaction(tmp_path: Path) -> None:
    search = {"type": "web_search_call", "action": {"query": "x"}}
    rows = [*EXPORTS["codex"](1), {"type": "response_item", "payload": search}]
    compacted = {"type": "compacted", "payload": {"message": "They added."}}
    (one,), told = read("codex", tmp_path / "a.jsonl", [*rows, compacted])
    assert one.messages[-1]["content"] == "It is 2."
    assert {reason.partition(":")[0] for reason in told.values()} == {"part lost", "no message"}


def test_rows_of_another_format_and_a_masker_that_fails_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, EXPORTS["codex"](1))))
    given = ["import", str(tmp_path / "a.jsonl"), "--from"]
    assert "give --from codex" in CliRunner().invoke(traces, [*given, "claude-code"]).stderr
    (tmp_path / "mine.py").write_text("def hide(text):\n    return text[99]\n")
    ended = CliRunner().invoke(traces, [*given, "codex", "--mask", f"{tmp_path}/mine.py:hide"])
    assert str(ended.exception) == "the masker failed: IndexError: string index out of range"
