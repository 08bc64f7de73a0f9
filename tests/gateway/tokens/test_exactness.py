"""Random conversations on random models: no sampled token is lost, forked or trained twice.

A client continues, rewrites what it sends back without or with a change of meaning, tries again, or
goes back to an earlier point. What should happen is worked out here, from messages alone.
"""

import asyncio
import copy
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from areal_sdk.engine import GenerateRequest
from areal_sdk.gateway.errors import ApiError, TemplateRefusalError
from areal_sdk.gateway.sampling.completer import Completer
from areal_sdk.gateway.sampling.request import ChatRequest, SamplingPolicy
from areal_sdk.gateway.sessions.session import Session
from areal_sdk.gateway.sessions.store import SessionStore
from areal_sdk.gateway.tokens.renderer import Renderer, TemplateInput
from areal_sdk.gateway.tokens.template import ChatTemplate
from areal_sdk.gateway.tokens.tokenizer import Tokenizer
from areal_sdk.rollout.trajectory import to_trajectories
from areal_sdk.testing import Reply, ScriptedEngine
from areal_sdk.types import Episode, Message, Outcome, Task, Tool, Turn
from tests.gateway.model_dirs import TEMPLATES
from tests.gateway.real_models import REAL_MODELS, real_model_dir

TOOL: Tool = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Find things.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string"}, "limit": {"type": "number"}},
            "required": ["query"],
        },
    },
}

HARD = st.sampled_from(
    [
        "<|im_end|>",
        "<|eot_id|>",
        "</s>",
        "🙂",
        "<tool_call>",
        "",
        "\n",
        "\x00",
        "</think>",
        "é",
        "  ",
    ]
)
TEXT = st.lists(st.one_of(HARD, st.text(max_size=8)), max_size=3).map("".join)


@dataclass
class Model:
    """A model directory, loaded once for all examples."""

    tokenizer: Tokenizer
    renderer: Renderer
    engine: ScriptedEngine
    sessions: SessionStore
    reply: Callable[[GenerateRequest], Reply] = lambda request: Reply("ok")

    @classmethod
    def load(cls, directory: Path) -> "Model":
        tokenizer = Tokenizer.load(directory)
        renderer = Renderer(tokenizer, ChatTemplate.load(directory))
        engine = ScriptedEngine(lambda r: model.reply(r), model_dir=directory, max_context=100_000)
        completer = Completer(engine, tokenizer, renderer, max_request_s=60)
        sessions = SessionStore(completer, sampling=SamplingPolicy())
        model = cls(tokenizer, renderer, engine, sessions)
        return model


@cache
def load(directory: Path) -> Model:
    return Model.load(directory)


Path_ = tuple[Any, ...]


@dataclass
class Play:
    """One session's client, with a record of what was said that knows nothing of the gateway's."""

    model: Model
    data: st.DataObject
    session: Session
    tools: tuple[Tool, ...]
    first_turn: dict[Path_, int] = field(default_factory=dict)
    """The first turn that said an answer, by everything that was said up to and including it."""
    asked: set[Path_] = field(default_factory=set)
    conversations: list[list[Message]] = field(default_factory=list)
    number: int = 0

    def draw(self, strategy: st.SearchStrategy[Any]) -> Any:
        return self.data.draw(strategy)

    async def ask(self, messages: list[Message], *, tools: tuple[Tool, ...] | None = None) -> None:
        """Send a request; compare where it was placed with where it belongs."""
        tools = self.tools if tools is None else tools
        path = said(messages, tools)
        parent = next(
            (
                self.first_turn[path[:n]]
                for n in range(len(path), 0, -1)
                if path[:n] in self.first_turn
            ),
            None,
        )
        self.number += 1
        self.model.reply = lambda request: self.answer(messages, tools)
        request = ChatRequest(
            tools=tools, max_new_tokens=200, messages=tuple(copy.deepcopy(messages))
        )
        completer = self.session._completer
        turn = await completer.complete(self.session, request)
        assert turn.prompt_tokens == self.model.engine.requests[-1].tokens
        assert turn.parent == parent, (turn.fork, messages)
        goes_on = path not in self.asked and (
            parent is not None and parent not in {t.parent for t in self.session.turns[:-1]}
        )
        rewritten = parent is not None and any(
            m["role"] == "assistant" for m in messages[len(self.covered(parent)) :]
        )
        if goes_on and not rewritten:
            assert turn.fork is None
        elif len(self.session.turns) > 1:
            assert turn.fork is not None
        self.asked.add(path)
        after = [*messages, turn.message]
        self.first_turn.setdefault(said(after, tools), len(self.session.turns) - 1)
        self.conversations.append(after)

    def covered(self, turn: int) -> list[Message]:
        return self.conversations[turn]

    def answer(self, messages: list[Message], tools: tuple[Tool, ...]) -> Reply:
        """Random tokens, or what the model would write to say something in particular."""
        kind = self.draw(st.sampled_from(["tokens", "text", "call", "calls", "thought"]))
        if kind == "tokens":
            ids = st.integers(0, self.model.tokenizer.vocab_size - 1)
            return Reply(tuple(self.draw(st.lists(ids, max_size=6))), stop=self.draw(st.booleans()))
        message: Message = {
            "role": "assistant",
            "content": f"Answer {self.number}. {self.draw(TEXT)}",
        }
        if kind == "thought" and self.model.renderer.reasons:
            return Reply(f"<think>\nhm {self.number}\n</think>\n\nSo {self.number}.")
        if kind in ("call", "calls") and tools:
            queries = [self.draw(st.text(max_size=5)) for _ in range(2 if kind == "calls" else 1)]
            message = calls(*queries, number=self.number)
        chat = TemplateInput(tuple(messages), tools)
        try:
            return Reply(self.model.renderer.answer(chat, message), stop=False)
        except TemplateRefusalError:
            return Reply(f"Answer {self.number}.")


def calls(*queries: str, number: int) -> Message:
    made = [
        {
            "id": f"made{number:04d}{i}",
            "type": "function",
            "function": {
                "name": "search",
                "arguments": json.dumps({"query": query, "limit": 2.0, "number": number}),
            },
        }
        for i, query in enumerate(queries)
    ]
    return {"role": "assistant", "content": None, "tool_calls": made}


def said(messages: list[Message], tools: tuple[Tool, ...]) -> Path_:
    """The content of messages, one item each; equal where a reader would find them equal."""
    items: list[Any] = []
    positions: dict[Any, int] = {}
    for message in messages:
        content = _text(message)
        if message["role"] == "assistant":
            made = message.get("tool_calls") or ()
            positions = {call["id"]: index for index, call in enumerate(made)}
            meant = [(c["function"]["name"], _value(c["function"]["arguments"])) for c in made]
            items.append(("assistant", content.strip(), repr(meant)))
        elif message["role"] == "tool":
            items.append(("tool", positions[message["tool_call_id"]], content))
        else:
            items.append((message["role"], content))
    for start in range(len(items)):  # results may come in any order
        end = start
        while end < len(items) and items[end][0] == "tool":
            end += 1
        items[start:end] = sorted(items[start:end])
    return (bool(tools), *items)


def _text(message: Message) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def _value(arguments: str) -> Any:
    value = json.loads(arguments)
    return sorted((k, float(v) if isinstance(v, (int, float)) else v) for k, v in value.items())


# What clients do to history without changing what it says.


def _drop_thoughts(messages: list[Message]) -> None:
    for message in messages:
        message.pop("reasoning_content", None)


def _trim(messages: list[Message]) -> None:
    for message in messages:
        if message["role"] == "assistant" and message.get("content"):
            message["content"] = message["content"].strip()


def _serialise_again(messages: list[Message]) -> None:
    for call in _calls(messages):
        value = json.loads(call["function"]["arguments"])
        value = {k: int(v) if isinstance(v, float) else v for k, v in reversed(value.items())}
        call["function"]["arguments"] = json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _rename_calls(messages: list[Message]) -> None:
    for call in _calls(messages):
        call["id"] = call["id"][::-1]
    for message in messages:
        if message["role"] == "tool":
            message["tool_call_id"] = message["tool_call_id"][::-1]


def _reorder_results(messages: list[Message]) -> None:
    for index in range(1, len(messages)):
        if messages[index - 1]["role"] == messages[index]["role"] == "tool":
            messages[index - 1], messages[index] = messages[index], messages[index - 1]


def _say_nothing_otherwise(messages: list[Message]) -> None:
    for message in messages:
        message.update(refusal=None, annotations=[])
        if message["role"] == "assistant" and not message.get("content"):
            message["content"] = ""
        elif message["role"] == "user" and isinstance(message["content"], str):
            message["content"] = [{"type": "text", "text": message["content"]}]


def _calls(messages: list[Message]) -> list[dict[str, Any]]:
    return [call for message in messages for call in message.get("tool_calls") or ()]


SAME = [
    _drop_thoughts,
    _trim,
    _serialise_again,
    _rename_calls,
    _reorder_results,
    _say_nothing_otherwise,
]


# What changes it.


def _other_text(messages: list[Message]) -> None:
    messages[-1]["content"] = f"{_text(messages[-1])} changed"


def _other_system(messages: list[Message]) -> None:
    messages[:] = [m for m in messages if m["role"] != "system"]
    messages.insert(0, {"role": "system", "content": "Something else."})


def _other_arguments(messages: list[Message]) -> None:
    for call in _calls(messages)[-1:]:
        call["function"]["arguments"] = '{"query": "changed"}'


def _other_result(messages: list[Message]) -> None:
    for message in messages:
        if message["role"] == "tool":
            message["content"] += "!"


def _shorter(messages: list[Message]) -> None:
    asked = [i for i, m in enumerate(messages) if m["role"] == "user"]
    del messages[: max(asked[-1], 1) if asked else 0]  # no result without its call


DIFFERENT = [_other_text, _other_system, _other_arguments, _other_result, _shorter]


async def play(model: Model, data: st.DataObject) -> Session:
    tools = data.draw(st.sampled_from([(), (TOOL,)]))
    number = len(model.sessions)
    client = Play(model, data, model.sessions.open(f"s{number}", seed=number), tools)
    system = [{"role": "system", "content": data.draw(TEXT)}] if data.draw(st.booleans()) else []
    start: list[Message] = [*system, {"role": "user", "content": f"Hi {data.draw(TEXT)}"}]
    try:
        await client.ask(start)
        for _ in range(data.draw(st.integers(1, 5))):
            await client.ask(next_request(client, data))
    except ApiError as exc:
        if "chat template does not accept" not in str(exc):
            raise
    finally:
        client.session.close()
    return client.session


def next_request(client: Play, data: st.DataObject) -> list[Message]:
    """The latest conversation or an earlier one, rewritten or not, with something new to answer."""
    after = data.draw(st.sampled_from([client.conversations[-1]] * 3 + client.conversations))
    messages = copy.deepcopy(after)
    for rewrite in data.draw(st.lists(st.sampled_from(SAME), unique=True, max_size=4)):
        rewrite(messages)
    change = data.draw(st.sampled_from([None] * 3 + DIFFERENT))
    if change is not None:
        change(messages)
    made = messages[-1].get("tool_calls") if messages[-1]["role"] == "assistant" else None
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": f"{i}: {data.draw(TEXT)}"}
        for i, call in enumerate(made or ())
    ]
    if results:
        return [*messages, *data.draw(st.permutations(results))]
    if messages[-1]["role"] == "assistant" or data.draw(st.booleans()):
        messages.append({"role": "user", "content": f"And {data.draw(TEXT)}"})
    return messages


def check_trained(turns: tuple[Turn, ...]) -> None:
    """Every sampled token is trained once, where it was sampled, after what it was sampled from."""
    episode = Episode("e", Task("t"), turns, Outcome.scored(1.0))
    trained: dict[tuple[int, int], int] = {}
    for trajectory in to_trajectories(episode):
        for position, turn in enumerate(trajectory.turn_of_token):
            if trajectory.loss_mask[position]:
                offset = trajectory.branch.num_before + position - turns[turn].num_prompt
                assert trained.setdefault((turn, offset), trajectory.tokens[position]) is not None
                assert trajectory.logprobs[position] == turns[turn].logprobs[offset]
        last = max(trajectory.turn_of_token)
        assert tuple(trajectory.branch.whole.tolist()) == turns[last].tokens
    sampled = {
        (index, offset): token
        for index, turn in enumerate(turns)
        if turn.excluded is None
        for offset, token in enumerate(turn.output_tokens)
    }
    assert trained == sampled


def run(model: Model, data: st.DataObject) -> None:
    check_trained(tuple(asyncio.run(play(model, data)).turns))


@pytest.mark.parametrize("shape", list(TEMPLATES))
@settings(
    max_examples=25,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(data=st.data())
def test_sampled_tokens_are_the_trained_tokens(
    model_dirs: dict[str, Path], shape: str, data: st.DataObject
) -> None:
    run(load(model_dirs[shape]), data)


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL_MODELS)
@settings(max_examples=200, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_sampled_tokens_of_real_models_are_the_trained_tokens(
    name: str, data: st.DataObject
) -> None:
    run(load(real_model_dir(name)), data)
