"""Lessons of an import: whole answers, with the scores that all have given, against the right prompt."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from areal_sdk import Message, Outcome
from areal_sdk.testing import make_episode
from areal_sdk.types import Exclusion
from areal_sdk_traces.book import Book, Fate, Place
from areal_sdk_traces.choice import Choice, chosen
from areal_sdk_traces.conversation import CUT_OFF, Conversation, is_learnt
from areal_sdk_traces.masking import mask_common, masked
from areal_sdk_traces.readers import reader_of
from areal_sdk_traces.recorded import episode_conversations
from areal_sdk_traces.rows import Row
from areal_sdk_traces.writers.rows import dpo, sft, tasks

ASKED: Message = {"role": "user", "content": "How warm?"}
CUT: Message = {"role": "assistant", "content": "It is fo"}
CHOICES = {"choices": [{"message": CUT, "finish_reason": "length"}]}
BLOCKS = {**CUT, "content": [{"type": "text", "text": "It is fo"}], "stop_reason": "max_tokens"}
GENERATED = {
    "generations": [[{"text": "It is fo", "generation_info": {"finish_reason": "length"}}]]
}
LINE = {"sessionId": "s", "type": "assistant", "uuid": "2", "parentUuid": "1"}


def generation(output: object) -> dict[str, Any]:
    return {"id": "g", "traceId": "t", "type": "GENERATION", "input": [ASKED], "output": output}


def langsmith(outputs: object) -> dict[str, Any]:
    inputs = {"messages": [ASKED]}
    return {"id": "r", "trace_id": "t", "run_type": "llm", "inputs": inputs, "outputs": outputs}


def span(*events: dict[str, Any], finish: str = "stop", reasons: object = ()) -> dict[str, Any]:
    kept: dict[str, Any] = {"gen_ai.response.finish_reasons": reasons}
    parts = [{"type": "text", "content": "It is fo"}]
    if not events:
        asked = [{"role": "user", "parts": [{"type": "text", "content": "How warm?"}]}]
        said = [{"role": "assistant", "parts": parts, "finish_reason": finish}]
        kept |= {"gen_ai.input.messages": asked, "gen_ai.output.messages": said}
    kept["gen_ai.operation.name"] = "chat"
    return {"traceId": "t", "spanId": "s", "name": "chat", "attributes": kept, "events": [*events]}


def claude(message: dict[str, Any], *after: dict[str, Any]) -> list[dict[str, Any]]:
    asked = {**LINE, "type": "user", "uuid": "1", "parentUuid": None, "message": ASKED}
    return [asked, {**LINE, "message": {"id": "m", **message}}, *after]


STOPPED = {
    **{**LINE, "type": "user", "uuid": "3", "parentUuid": "2"},
    "message": {"role": "user", "content": "[Request interrupted by user]"},
}
PHOENIX = {
    "openinference.span.kind": "LLM",
    "llm.input_messages": [{"message": ASKED}],
    "llm.output_messages": [{"message": CUT}],
    "output.value": json.dumps(CHOICES),
}
OLD_EVENTS = (
    {"name": "gen_ai.user.message", "attributes": {"content": "How warm?"}},
    {"name": "gen_ai.choice", "attributes": {"finish_reason": "length", "message": CUT}},
)


@pytest.mark.parametrize(
    ("format", "rows"),
    [
        ("langfuse", [generation(CHOICES)]),
        ("langfuse", [generation(BLOCKS)]),
        ("langsmith", [langsmith(CHOICES)]),
        ("langsmith", [langsmith(GENERATED)]),
        ("langsmith", [langsmith(BLOCKS)]),
        ("otel", [span(finish="length")]),
        ("otel", [span(reasons=["max_tokens"])]),
        ("otel", [span(*OLD_EVENTS)]),
        ("claude-code", claude(BLOCKS)),
        ("claude-code", claude({**BLOCKS, "stop_reason": None}, STOPPED)),
        ("openinference", [{**span(), "attributes": PHOENIX}]),
        ("verifiers", [{"prompt": [ASKED], "completion": [CUT], "is_truncated": True}]),
    ],
)
def test_an_answer_that_met_a_limit_is_not_taught(format: str, rows: Sequence[Any]) -> None:
    book = Book()
    placed = [Row(row, Place("rows.jsonl", line)) for line, row in enumerate(rows, start=1)]
    (found,) = reader_of(format)(placed, book)
    assert "It is fo" in [message["content"] for message in found.messages]
    assert not any(map(is_learnt, found.messages))
    assert CUT_OFF in [entry.reason for entry in book.entries]


def said(text: str, **more: object) -> Message:
    return {"role": "assistant", "content": text, **more}


def scored(name: str, score: float, *messages: Message) -> Conversation:
    scores = {"reward": score}
    return Conversation(name, (ASKED, *messages), scores=scores, places=(Place("rows", 1),))


def test_what_was_said_several_times_has_the_mean_of_its_scores() -> None:
    often = [scored(f"four-{n}", score, said("4")) for n, score in enumerate((1.0, 0.0, 0.0))]
    found = [*often, scored("five", 0.5, said("5"))]
    (pair,) = dpo(chosen(found, Book(), choice=Choice(), mask=None), Book())
    assert pair["chosen"] == [said("5")], "although the first score of the other answer is 1"
    assert list(chosen(found, Book(), choice=Choice(min_score=1.0), mask=None)) == []


def test_answers_that_a_mask_makes_equal_are_no_pair() -> None:
    found = [scored("a", 1.0, said("ann@shop.org")), scored("b", 0.0, said("bob@shop.org"))]
    (one,) = chosen(found, book := Book(), choice=Choice(), mask=mask_common)
    assert one.score == 0.5
    assert list(dpo([one], book)) == []


def test_two_people_stay_two_under_the_mask() -> None:
    one = scored("a", 1.0, said("ann@x.org and bob@x.org"), ASKED, said("bob@x.org"))
    hidden, _ = masked(one, mask_common)
    texts = [message["content"] for message in hidden.messages if message != ASKED]
    assert texts == ["[email] and [email 2]", "[email 2]"]


def test_an_answer_that_was_cut_off_is_in_no_pair() -> None:
    more = [ASKED, said("It is fo", weight=0)]
    (pair,) = dpo([scored("a", 1.0, said("4"), *more), scored("b", 0.0, said("5"))], Book())
    assert (pair["chosen"], pair["rejected"]) == ([said("4")], [said("5")])


@pytest.mark.parametrize(
    ("messages", "answer"),
    [
        ([said("4"), {"role": "user", "content": "And the capital?"}, said("Paris")], "4"),
        (
            [said("I look it up.", tool_calls=[{"function": {"name": "f", "arguments": "{}"}}])],
            None,
        ),
    ],
)
def test_the_reference_of_a_task_answers_its_prompt(
    messages: list[Message], answer: str | None
) -> None:
    (task,) = tasks([scored("a", 1.0, *messages)], Book())
    assert task["data"].get("answer") == answer


def test_the_order_of_scores_in_a_file_changes_nothing() -> None:
    scores = [{"id": f"{n}", "traceId": "t", "name": "ok", "value": n} for n in (1, 0, 0, 0)]
    for rows in ([*scores, generation("4")], [generation("4"), *scores[::-1]]):
        (found,) = reader_of("langfuse")([Row(row, Place("rows", 1)) for row in rows], Book())
        assert found.score == 0.25


@pytest.mark.parametrize(("own", "score"), [({"white": 1.0, "black": -1.0}, -1.0), ({}, None)])
def test_an_opponent_has_its_own_score_or_is_context(
    own: dict[str, float], score: float | None
) -> None:
    (turn,) = make_episode("e4").turns
    frozen = replace(turn, policy="black", excluded=Exclusion.FROZEN_POLICY)
    turns = (replace(turn, policy="white"), replace(frozen, message=said("e5")))
    outcome = Outcome.scored(1.0, by_policy=own)
    episode = replace(make_episode("e4"), turns=turns, outcome=outcome)
    white, *black = episode_conversations(episode, Place("run", 0), book := Book())
    assert white.score == 1.0
    taught = [*sft([white, *black], book)]
    assert len(taught) == (1 if score is None else 2)
    assert score is None or [one.score for one in black] == [score]


def test_calls_of_what_is_not_offered_are_told() -> None:
    call = {"id": "1", "function": {"name": "look", "arguments": "{}"}}
    one, book = scored("a", 1.0, said("", tool_calls=[call]), said("4")), Book()
    assert len([*sft([one], book)]) == 1
    (entry,) = book.entries
    assert (entry.fate, entry.reason.endswith("not among its tools: look")) == (Fate.FLAW, True)


def test_no_answer_is_taught_to_a_part_that_is_lost() -> None:
    parts = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {}}]
    before = [ASKED, said("4")]
    for history, num_taught in ([], 0), (before, 1):
        seen = [*history, {"role": "user", "content": parts}]
        row = {
            "request": {"messages": seen},
            "response": {"choices": [{"message": said("A dog.")}]},
        }
        first = {
            "request": {"messages": [ASKED]},
            "response": {"choices": [{"message": said("4")}]},
        }
        given = [*([first] if history else []), row]
        placed = [Row(one, Place("rows", line)) for line, one in enumerate(given, start=1)]
        (found,) = reader_of("openai")(placed, Book())
        rows = [*sft([found], book := Book())]
        taught = [m["content"] for row in rows for m in row["messages"] if is_learnt(m)]
        assert taught == ["4"] * num_taught
        assert any("has lost a part" in entry.reason for entry in book.entries)
        assert num_taught or [*tasks([found], Book())] == []
