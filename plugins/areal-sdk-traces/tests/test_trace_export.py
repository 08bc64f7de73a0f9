"""Episodes go out as ATIF, verifiers traces and OpenTelemetry, and come back as the same conversations."""

import importlib
import io
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from areal_sdk import Episode, FinishReason, Message, Outcome, Task, Turn
from areal_sdk.testing import RecordedRun, make_episode
from areal_sdk_traces.book import Book, Fate, Place
from areal_sdk_traces.command import traces
from areal_sdk_traces.conversation import Conversation, arguments_of
from areal_sdk_traces.exporters import Source, export_run, exporter_of
from areal_sdk_traces.readers import reader_of
from areal_sdk_traces.recorded import episode_conversations
from areal_sdk_traces.rows import read_rows
from areal_sdk_traces.writers import TARGETS

SOURCE = Source("run", "desk", "tiny", "live")
TEXTS = ("yes", " two\nlines ", "Ünï©ödé 😀 שלום", '{"a": [1]}', "<|im_end|>", "\x00\u2028", '"\\')
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}


class Episodes:
    """Random episodes: roots with tools of their own, branches, parallel calls, thoughts, images, cut-off answers."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._calls = 0

    def episode(self) -> Episode:
        turns: list[Turn] = []
        for index in range(self.random.randint(1, 7)):
            turns.append(self._turn(index, turns))
        reward = self.random.choice((None, 0.0, 0.25, 1.0))
        outcome = Outcome.abstained("no reward") if reward is None else Outcome.scored(reward)
        return Episode("the-episode", Task("task"), tuple(turns), outcome)

    def _turn(self, index: int, turns: list[Turn]) -> Turn:
        is_root = not turns or self.random.random() < 0.2
        parent = None if is_root else self.random.randrange(max(0, index - 3), index)
        before = () if parent is None else turns[parent].tokens
        new = self._opening() if parent is None else self._next(turns[parent].message)
        tools = self._tools() if parent is None else []
        output = tuple(self.random.randrange(99) for _ in range(3))
        has_end = self.random.random() < 0.85
        return Turn(
            new_tokens=(*before, *(self.random.randrange(99) for _ in range(4))),
            output_tokens=output,
            logprobs=(-0.5, -0.25, -1.0 / 3),
            versions=(2, 2, 3),
            message=self._answer(),
            new_messages=tuple(new),
            finish_reason=FinishReason.STOP if has_end else FinishReason.LENGTH,
            parent=parent,
            details={"tools": tools} if tools else {},
        )

    def _opening(self) -> list[Message]:
        system = {"role": "system", "content": self._text()}
        return [*([system] if self.random.random() < 0.5 else []), self._user()]

    def _next(self, answer: Message) -> list[Message]:
        results: list[Message] = [
            {"role": "tool", "tool_call_id": call["id"], "content": self._text()}
            for call in answer.get("tool_calls") or ()
        ]
        is_silent = results and self.random.random() < 0.7
        return results if is_silent else [*results, self._user()]

    def _user(self) -> Message:
        content: Any = self._text()
        if self.random.random() < 0.2:
            content = [{"type": "text", "text": content}, IMAGE, {"type": "text", "text": "?"}]
        return {"role": "user", "content": content}

    def _answer(self) -> Message:
        calls = [self._call() for _ in range(self.random.choice((0, 0, 1, 3)))]
        has_text = not calls or self.random.random() < 0.3
        message: Message = {"role": "assistant", "content": self._text() if has_text else None}
        if calls:
            message["tool_calls"] = calls
        if self.random.random() < 0.3:
            message["reasoning_content"] = self._text()
        return message

    def _call(self) -> dict[str, Any]:
        self._calls += 1
        arguments = {"a": self._text(), "b": [self.random.random(), None, {"c": True}]}
        text = "no object" if self.random.random() < 0.1 else json.dumps(arguments)
        function = {"name": self.random.choice(("look", "find")), "arguments": text}
        return {"id": f"call_{self._calls}", "type": "function", "function": function}

    def _tools(self) -> list[dict[str, Any]]:
        names = self.random.sample(("look", "find", "send"), self.random.randint(0, 3))
        schema = {"type": "object", "properties": {"a": {"type": "string"}}}
        return [
            {"type": "function", "function": {"name": n, "description": n, "parameters": schema}}
            for n in names
        ]

    def _text(self) -> str:
        return self.random.choice(TEXTS) + str(self.random.randint(0, 3))


def exported(episode: Episode, target: str) -> list[Any]:
    rows = exporter_of(target)(episode, SOURCE, Place("run", 0), Book())
    return [json.loads(json.dumps(row, default=list)) for row in rows]


def read_back(rows: list[Any], target: str) -> tuple[list[Conversation], Book]:
    book = Book()
    raw = "\n".join(map(json.dumps, rows)).encode()
    found = [*reader_of(target)(read_rows("-", book, stdin=io.BytesIO(raw)), book)]
    for one in found:
        book.used(one.places)
    book.close()
    return found, book


def said(one: Conversation, others: list[Conversation]) -> Any:
    """The messages, tools, place in the tree and score of a conversation, without what has two spellings."""
    names = [other.id for other in others]
    tree = one.link and (names.index(one.link.parent), one.link.relation, one.link.num_shared)
    return [plain(message) for message in one.messages], one.tools, tree, one.score


def plain(message: Message) -> Message:
    calls = [
        (call["id"], call["function"]["name"], arguments_of(call["function"]["arguments"]))
        for call in message.get("tool_calls") or ()
    ]
    other = {k: v for k, v in message.items() if k not in ("content", "tool_calls")}
    return {**other, "content": message.get("content") or "", "calls": calls}


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest) -> str:
    if request.param == "otel":
        pytest.importorskip("areal_sdk_otel", reason="pip install areal-sdk-otel")
    return str(request.param)


def test_what_goes_out_comes_back_as_the_same_conversations(target: str) -> None:
    num_branches = 0
    for seed in range(200):
        episode = Episodes(seed).episode()
        wanted = [*episode_conversations(episode, Place("run", 0), Book())]
        found, book = read_back(exported(episode, target), target)
        assert [said(one, found) for one in found] == [said(one, wanted) for one in wanted], seed
        assert not book.of(Fate.DAMAGED, Fate.UNEXPLAINED), book.entries
        num_branches += len(wanted) - 1
    assert num_branches > 200, "branches are rare among the episodes"


def test_spans_that_a_run_sent_are_read_too() -> None:
    otlp = pytest.importorskip("areal_sdk_otel.otlp", reason="pip install areal-sdk-otel")
    spans = importlib.import_module("areal_sdk_otel.spans")
    teller = spans.Teller(agent="desk", model="tiny", content=True)
    rows: list[Any] = []
    for seed in range(100):
        episode = Episodes(seed).episode()
        wanted = [*episode_conversations(episode, Place("run", 0), Book())]
        trace = teller.tell(episode, split="live", dropped="", now_ns=10**18)
        rows = [
            json.loads(otlp.body(signal, {}, pieces))
            for signal, pieces in (("traces", trace.spans), ("logs", trace.events))
        ]
        found, _ = read_back(rows, "otel")
        assert [said(one, found) for one in found] == [said(one, wanted) for one in wanted], seed
    del rows[0]["resourceSpans"][0]["scopeSpans"][0]["spans"][1]
    found, book = read_back(rows, "otel")
    assert "is not here" in " ".join(entry.reason for entry in book.of(Fate.DAMAGED))


def test_tokens_of_atif_are_those_that_were_sampled() -> None:
    for seed in range(50):
        episode = Episodes(seed).episode()
        trained = [
            step["metrics"]
            for document in exported(episode, "atif")
            for step in document["steps"]
            if "metrics" in step
        ]
        told = [(one["prompt_token_ids"], one["completion_token_ids"]) for one in trained]
        turns = [([*t.prompt_tokens], [*t.output_tokens]) for t in episode.turns]
        assert sorted(told) == sorted(turns), "each answer has its tokens once"
        assert all(one["logprobs"] == [-0.5, -0.25, -1.0 / 3] for one in trained)


def test_a_path_of_verifiers_has_the_tokens_of_its_last_call() -> None:
    for seed in range(50):
        episode = Episodes(seed).episode()
        (row,) = exported(episode, "verifiers")
        nodes, calls = row["traces"][0]["nodes"], row["traces"][0]["calls"]
        for turn, call in zip(episode.turns, calls, strict=True):
            tokens: list[int] = []
            mask: list[bool] = []
            at = call["node"]
            while at is not None:
                tokens = [*nodes[at].get("token_ids", ()), *tokens]
                mask = [*nodes[at].get("mask", ()), *mask]
                at = nodes[at].get("parent")
            assert tuple(tokens) == turn.tokens
            assert mask[-3:] == [True] * 3


def test_an_image_is_kept_by_the_formats_that_can_name_it() -> None:
    asked = {"role": "user", "content": [{"type": "text", "text": "What?"}, IMAGE]}
    episode = make_episode([asked, {"role": "assistant", "content": "A cat."}])
    (document,) = exported(episode, "atif")
    source = {"media_type": "image/png", "path": "https://example.org/a.png"}
    assert document["steps"][0]["message"][1] == {"type": "image", "source": source}
    (row,) = exported(episode, "verifiers")
    assert row["traces"][0]["nodes"][0]["message"]["content"] == asked["content"]
    found, book = read_back([document], "atif")
    assert found[0].messages[0]["content"] == "What?"
    assert [entry.reason for entry in book.of(Fate.PART_LOST)] == ["a part of type 'image'"]


def test_a_call_without_a_function_goes_out_and_comes_back_as_one(
    target: str, tmp_path: Path
) -> None:
    custom = {"id": "c1", "type": "custom", "custom": {"name": "sh", "input": "ls"}}
    bare = {"id": "c2", "name": "look", "arguments": "{}"}
    answer = {"role": "assistant", "content": None, "tool_calls": [custom, bare]}
    recorded = RecordedRun(tmp_path / "run")
    recorded.measure(make_episode([{"role": "user", "content": "What?"}, answer]), split="live")
    recorded.close()
    rows = [*export_run(tmp_path / "run", target, Book())]
    (one,), _ = read_back(json.loads(json.dumps(rows, default=list)), target)
    calls = one.messages[1]["tool_calls"]
    assert [(call["id"], *call["function"].values()) for call in calls] == [
        ("c1", "sh", "ls"),
        ("c2", "look", "{}"),
    ]


def test_a_run_is_exported_and_imported_by_commands(target: str, tmp_path: Path) -> None:
    recorded = RecordedRun(tmp_path / "run")
    for number in range(3):
        episode = replace(Episodes(number).episode(), id=f"e{number}")
        recorded.measure(episode, split="live")
    recorded.close()
    output = tmp_path / "out.jsonl"
    given = [str(tmp_path / "run"), "--to", target, "--output", str(output)]
    ended = CliRunner().invoke(traces, ["export", *given], catch_exceptions=False)
    assert ended.exit_code == 0, ended.output
    assert "3 rows" in ended.stderr
    arguments = ["import", str(output), "--from", target, "--mask", "none"]
    ended = CliRunner().invoke(traces, arguments, catch_exceptions=False)
    ids = {json.loads(line)["id"].partition("#")[0] for line in ended.stdout.split("\n") if line}
    assert ids == {"e0", "e1", "e2"}
