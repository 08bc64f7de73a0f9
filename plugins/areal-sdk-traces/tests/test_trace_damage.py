"""Input that no exporter should write: a fault of one row or one file costs that row or that file, and is named."""

import gzip
import io
import json
import os
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from trace_exports import EXPORTS, chat

from areal_sdk.testing import RecordedRun, assistant, make_episode
from areal_sdk_traces.book import Book, Fate
from areal_sdk_traces.choice import Choice, chosen
from areal_sdk_traces.conversation import Conversation, meaning
from areal_sdk_traces.masking import mask_common, masked
from areal_sdk_traces.readers import FORMATS, reader_of
from areal_sdk_traces.recorded import read_run
from areal_sdk_traces.rows import read_rows


def read(format: str, source: Path) -> tuple[list[Conversation], list[str]]:
    """The conversations, and the damage with its places."""
    book = Book()
    rows = read_rows(str(source), book, stdin=io.BytesIO())
    found = [*chosen(reader_of(format)(rows, book), book, choice=Choice(), mask=None)]
    book.close()
    assert not book.of(Fate.UNEXPLAINED)
    return found, [f"{entry.place}: {entry.reason}" for entry in book.of(Fate.DAMAGED)]


def lines(*numbers: int, format: str = "openai") -> str:
    return "\n".join(json.dumps(row) for n in numbers for row in EXPORTS[format](n))


def test_files_that_cannot_be_read_cost_only_themselves(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines(1))
    packed = bytearray(gzip.compress(lines(*range(50)).encode()))
    packed[60] ^= 255
    (tmp_path / "b.jsonl.gz").write_bytes(packed)
    (tmp_path / "c.json").write_text("[" * 100_000)
    (tmp_path / "d.eval").write_bytes(b"PK\x05\x06" + bytes(18))
    (tmp_path / "e.jsonl").write_bytes(b"\xef\xbb\xbf" + lines(2).encode())
    found, damage = read("openai", tmp_path)
    assert [one.messages[1]["content"] for one in found] == ["What is 1+1?", "What is 2+1?"]
    assert [one.partition(":")[0] for one in damage] == ["b.jsonl.gz", "c.json", "d.eval"]


def test_a_name_that_is_no_utf_8_is_written_with_its_bytes(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.jsonl")).write_text(lines(1))
    (one,), _ = read("openai", tmp_path)
    assert one.places[0].file == r"\xff.jsonl"


def test_an_element_that_is_no_json_costs_no_other_element(tmp_path: Path) -> None:
    said = [json.dumps(row) for n in (1, 2) for row in EXPORTS["openai"](n)]
    said[2:2] = ['{"a": NaN}', r'{"a": "\ud800"}', f'{{"a": {"9" * 5_000}}}']
    (tmp_path / "a.json").write_text("[" + ",\n".join(said) + "]")
    found, damage = read("openai", tmp_path)
    assert len(found) == 2
    assert [one.partition(",")[0] for one in damage] == ["a.json:3", "a.json:4", "a.json:5"]


def test_a_list_of_many_elements_names_their_lines_and_bytes(tmp_path: Path) -> None:
    """Each byte is counted once: with a count from the start at each element this takes minutes."""
    raw = json.dumps([{"é": "x" * 5_000}] * 5_000, indent=1, ensure_ascii=False)
    (tmp_path / "a.json").write_text(raw)
    rows = [*read_rows(str(tmp_path / "a.json"), Book(), stdin=io.BytesIO())]
    assert len(rows) == 5_000
    place = rows[-1].place
    assert place.line == raw.count("\n") - 2
    assert raw.encode()[int(place.part.removeprefix("byte ")) :].startswith(b"{\n")


def test_a_damaged_sample_costs_no_other_sample_of_its_archive(tmp_path: Path) -> None:
    (log,) = EXPORTS["inspect"](1)
    samples = log.pop("samples")
    with zipfile.ZipFile(tmp_path / "a.eval", "w") as archive:
        archive.writestr("header.json", json.dumps(log))
        archive.writestr("samples/1_epoch_1.json", '{"id": 1,')
        archive.writestr("samples/2_epoch_1.json", json.dumps(samples[0]))
    with zipfile.ZipFile(tmp_path / "b.eval", "w") as archive:
        archive.writestr("header.json", "[]")
    found, damage = read("inspect", tmp_path)
    assert len(found) == 1
    assert "samples/1_epoch_1.json is damaged" in damage[0]
    assert "its header is not an object" in damage[1]
    assert len(damage) == 2


def test_references_and_items_of_any_type_are_damage(tmp_path: Path) -> None:
    (log,) = EXPORTS["inspect"](1)
    log["samples"][0]["events"][2]["input_refs"] = [[0, "4"]]
    (tmp_path / "a.json").write_text(json.dumps([log, *EXPORTS["inspect"](2)]))
    found, damage = read("inspect", tmp_path / "a.json")
    assert len(found) == 1
    assert "are not in the pool" in damage[0]
    odd = {"type": "response_item", "payload": {"type": ["message"], "role": "user"}}
    (tmp_path / "c.jsonl").write_text(lines(1, format="codex") + "\n" + json.dumps(odd))
    found, damage = read("codex", tmp_path / "c.jsonl")
    assert len(found) == 1
    assert damage == [f"{tmp_path}/c.jsonl:6: an item without 'type'"]


def claude(kind: str, uuid: str, parent: str | None, said: str = "", **more: Any) -> str:
    content = [{"type": "text", "text": said}]
    row = {"type": kind, "uuid": uuid, "parentUuid": parent, "sessionId": "s", **more}
    return json.dumps({**row, "message": {"role": kind, "content": content, "id": f"m{uuid}"}})


def test_lines_between_a_line_of_claude_code_and_its_parent_break_no_chain(tmp_path: Path) -> None:
    said = [
        claude("user", "1", None, "Hi"),
        claude("assistant", "2", "1", "Hello"),
        claude("system", "3", "2", subtype="turn_duration"),
        claude("user", "4", "3", "Again"),
        claude("attachment", "5", "4"),
        claude("assistant", "6", "5", "API Error", isApiErrorMessage=True),
        claude("user", "7", "6", "Retry"),
        claude("progress", "8", "7"),
        claude("assistant", "9", "8", "Hello again"),
        claude("system", "10", None, subtype="compact_boundary", logicalParentUuid="9"),
        claude("user", "11", "10", "So far: hellos.", isCompactSummary=True),
        claude("assistant", "12", "11", "Go on."),
    ]
    (tmp_path / "s.jsonl").write_text("\n".join(said))
    (first, second), damage = read("claude-code", tmp_path / "s.jsonl")
    assert not damage
    texts = ["Hi", "Hello", "Again", "Retry", "Hello again"]
    assert [one["content"] for one in first.messages] == texts
    assert [one["content"] for one in second.messages] == ["So far: hellos.", "Go on."]
    assert second.link is not None
    assert second.link.relation == "compaction"


def test_a_resumed_session_of_claude_code_may_be_read_before_its_beginning(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_text(
        "\n".join([claude("user", "1", None, "Hi"), claude("assistant", "2", "1", "Hello")])
    )
    resumed = [claude("user", "3", "2", "Again"), claude("assistant", "4", "3", "Hello again")]
    orphan = claude("user", "5", "never", "Lost")
    (tmp_path / "a.jsonl").write_text("\n".join([*resumed, orphan, claude("system", "6", "5")]))
    (one,), damage = read("claude-code", tmp_path)
    assert [m["content"] for m in one.messages] == ["Hi", "Hello", "Again", "Hello again"]
    assert damage == ["a.jsonl:3: its parent 'never' is not here, or is damaged"]


def test_masks_read_a_long_word_once_and_hide_the_names_of_arguments() -> None:
    """A search that begins at each letter takes hours for the word."""
    assert mask_common("a" * 1_000_000 + " ann@example.org") == "a" * 1_000_000 + " [email]"
    said = chat(1)
    said[2]["tool_calls"][0]["function"]["arguments"] = '{"to": {"ann@example.org": 1}}'
    one, num_changed = masked(Conversation("c", tuple(said)), mask_common)
    assert num_changed == 1
    call = one.messages[2]["tool_calls"][0]
    assert json.loads(call["function"]["arguments"]) == {"to": {"[email]": 1}}


def test_messages_of_otel_may_be_log_records(tmp_path: Path) -> None:
    """Records as OpenTelemetry's instrumentation of OpenAI's client writes them: one for each message, its text in the body."""

    def typed(value: Any) -> Any:
        if isinstance(value, dict):
            return {"kvlistValue": {"values": fields(value)}}
        if isinstance(value, list):
            return {"arrayValue": {"values": [typed(one) for one in value]}}
        return {"stringValue": value}

    def fields(value: dict[str, Any]) -> list[Any]:
        return [{"key": key, "value": typed(one)} for key, one in value.items()]

    *asked, answer = chat(1)
    bodies = [(f"gen_ai.{one['role']}.message", message_of(one)) for one in asked]
    bodies.append(("gen_ai.choice", {"message": message_of(answer), "finish_reason": "stop"}))
    ids = {"traceId": "t", "spanId": "s"}
    records = [
        {**ids, "attributes": fields({"event.name": name}), "body": typed(body)}
        for name, body in bodies
    ]
    span = {**ids, "name": "chat", "attributes": fields({"gen_ai.operation.name": "chat"})}
    rows = [
        {"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]},
        {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]},
    ]
    console = [
        *({"trace_id": "0xu", "span_id": "0xv", "body": b, "event_name": n} for n, b in bodies),
        {"context": {"trace_id": "0xu", "span_id": "0xv"}, "name": "chat", "attributes": {}}
        | {"attributes": {"gen_ai.operation.name": "chat"}},
    ]
    for name, given in (("otlp", rows), ("console", console)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, given)))
        (one,), damage = read("otel", tmp_path / f"{name}.jsonl")
        assert not damage
        assert [meaning(message) for message in one.messages] == [meaning(m) for m in chat(1)]


def message_of(message: dict[str, Any]) -> dict[str, Any]:
    """The body of an event: a tool's result names its call by `id`."""
    kept = {k: v for k, v in message.items() if k not in ("role", "tool_call_id") and v is not None}
    return kept | ({"id": message["tool_call_id"]} if message["role"] == "tool" else {})


def test_batches_that_use_a_name_again_are_not_mixed(tmp_path: Path) -> None:
    def batch(n: int) -> tuple[str, str]:
        row = EXPORTS["openai"](n)[1]
        asked = {"custom_id": "request-1", "body": row["request"]}
        reply = {
            "custom_id": "request-1",
            "response": {"status_code": 200, "body": row["response"]},
        }
        return json.dumps(asked), json.dumps(reply)

    (tmp_path / "a.jsonl").write_text("\n".join([*batch(1), *batch(1)]))
    found, damage = read("openai", tmp_path)
    assert len(found) == 1
    assert not damage
    (tmp_path / "b.jsonl").write_text(batch(2)[0])  # whose reply is missing
    found, damage = read("openai", tmp_path)
    assert not found
    assert len(damage) == 3
    assert "import one batch at a time" in damage[0]
    failed = {"custom_id": "request-1", "response": {"status_code": 500}}
    (tmp_path / "b.jsonl").unlink()
    (tmp_path / "a.jsonl").write_text("\n".join([batch(1)[0], json.dumps(failed)]))
    assert len(read("openai", tmp_path)[1]) == 2, "the request and its reply"


@pytest.mark.parametrize("format", FORMATS)
def test_a_value_nested_too_deep_costs_its_row(format: str, tmp_path: Path) -> None:
    """Python reads 1000 levels of JSON and orjson writes 254."""
    deep = '{"a": ' + "[" * 300 + "]" * 300 + "}"
    text = json.dumps(EXPORTS[format](1)).replace('{"a": 1}', deep)
    for _ in range(2):  # arguments are a text, in a text of JSON at times
        deep = json.dumps(deep)[1:-1]
        text = text.replace(json.dumps('{"a": 1}')[1:-1], deep)
    (tmp_path / "a.json").write_text(text[:-1] + "," + json.dumps(EXPORTS[format](2))[1:])
    found, _ = read(format, tmp_path)
    assert (
        any(m["content"] == "It is 3." for one in found for m in one.messages) or format == "codex"
    )


@pytest.mark.parametrize("observations", [5, "abc", {"a": 1}, [3], None, []])
def test_a_trace_of_langfuse_without_calls_is_named(observations: Any, tmp_path: Path) -> None:
    score = {"name": "helpful", "value": 1.0, "dataType": "NUMERIC"}
    row = {"id": "t", "userId": "ann", "observations": observations, "scores": [score]}
    (tmp_path / "a.json").write_text(json.dumps(row))
    book = Book()
    assert not [*reader_of("langfuse")(read_rows(str(tmp_path), book, stdin=io.BytesIO()), book)]
    assert book.of(Fate.DAMAGED, Fate.NO_MESSAGE)


def test_a_damaged_episode_of_a_run_costs_no_other(tmp_path: Path) -> None:
    recorded = RecordedRun(tmp_path / "run")
    for number in range(3):
        said = make_episode([{"role": "user", "content": f"{number}?"}, assistant("Yes.")])
        recorded.measure(replace(said, id=f"e{number}"), split="live")
    recorded.close()
    (file,) = (tmp_path / "run" / "episodes").glob("*.episodes")
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 255
    file.write_bytes(raw)
    book = Book()
    found = [*read_run(tmp_path / "run", book)]
    damage = book.of(Fate.DAMAGED)
    assert damage
    assert {f"run/{one.id}" for one in found}.isdisjoint(str(entry.place) for entry in damage)
    assert len(found) + len(damage) == 3


def test_a_damaged_line_of_the_index_of_a_run_is_told(tmp_path: Path) -> None:
    recorded = RecordedRun(tmp_path / "run")
    for number in range(3):
        said = make_episode([{"role": "user", "content": f"{number}?"}, assistant("Yes.")])
        recorded.measure(replace(said, id=f"e{number}"), split="live")
    recorded.close()
    (index,) = (tmp_path / "run" / "episodes").glob("*.index")
    kept = index.read_bytes().replace(b'{"id":"e1"', b'#"id":"e1"')
    assert kept != index.read_bytes()
    index.write_bytes(kept)
    book = Book()
    assert [one.id for one in read_run(tmp_path / "run", book)] == ["e0", "e2"]
    (entry,) = book.of(Fate.DAMAGED)
    assert str(entry).startswith("run, index: damaged: 1 lines of its metrics or its index")
