"""Recorded is what was sampled: tokens, versions, temperature, and the reason why some is not
trained."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from areal_sdk.engine import GenerateChunk, GenerateRequest, Sampling
from areal_sdk.gateway import ApiError, SamplingPolicy, SessionClosedError, SessionLimits
from areal_sdk.gateway.sampling.completer import Completer
from areal_sdk.gateway.sampling.request import ChatRequest
from areal_sdk.gateway.tokens.renderer import Renderer
from areal_sdk.gateway.tokens.template import ChatTemplate
from areal_sdk.rollout.trajectory import to_trajectories
from areal_sdk.testing import Fault, Reply, scripted_logprob
from areal_sdk.types import (
    Episode,
    Exclusion,
    FinishReason,
    ForkReason,
    Message,
    Outcome,
    Task,
    WeightUpdate,
)
from tests.gateway.conftest import StartGateway
from tests.gateway.model_dirs import TEMPLATES
from tests.gateway.tool_calls.three_tools import TOOLS
from tests.toolbox.gateway_requests import HI, call


async def test_versions_and_logprobs_are_the_engines(start_gateway: StartGateway) -> None:
    gateway, engine = await start_gateway("Hello there")

    async def swap_weights(request: object, index: int) -> None:
        if index == 1:
            await engine.update_weights(WeightUpdate(version=7, path=None))

    engine._on_token = swap_weights
    turn = await gateway.sessions.open("e").generate(HI)
    assert turn.versions[:3] == (0, 7, 7)
    assert turn.logprobs == tuple(scripted_logprob(t, i) for i, t in enumerate(turn.output_tokens))


async def test_a_turn_says_when_it_began_and_when_its_first_token_came(
    start_gateway: StartGateway,
) -> None:
    gateway, engine = await start_gateway("Hello there")

    async def wait(request: object, index: int) -> None:
        await asyncio.sleep(0.03)

    engine._on_token = wait
    session = gateway.sessions.open("e")
    first, second = await session.generate(HI), await session.generate(HI)
    assert 0.0 <= first.began_s < second.began_s
    assert second.began_s >= first.began_s + first.duration_s - 0.001
    for turn in (first, second):
        assert 0.02 < turn.first_token_s < turn.duration_s
        assert turn.num_cached == 0


async def test_a_turn_says_how_long_it_waited_for_a_slot(
    start_gateway: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway, engine = await start_gateway("Hello there")
    stream = engine.stream

    async def queued(request: GenerateRequest) -> AsyncGenerator[GenerateChunk, None]:
        async for chunk in stream(request):
            yield replace(chunk, queued_s=0.25)

    monkeypatch.setattr(engine, "stream", queued)
    assert (await gateway.sessions.open("e").generate(HI)).queued_s == 0.25


async def test_the_first_turn_of_a_conversation_keeps_its_tools(
    start_gateway: StartGateway,
) -> None:
    gateway, _ = await start_gateway(["a", "b", "c", "d"])
    session = gateway.sessions.open("e")
    tools = list(TOOLS)
    first = await session.generate(HI, tools=tools)
    await session.generate([*HI, first.message, *HI], tools=tools)
    await session.generate(HI, tools=tools[:1])
    await session.generate(HI)
    assert [turn.parent for turn in session.turns] == [None, 0, None, None]
    told = [turn.details.get("tools") for turn in session.turns]
    assert told == [tools, None, tools[:1], None]


async def test_token_ids_are_taken_as_they_are(start_gateway: StartGateway) -> None:
    gateway, engine = await start_gateway(["a", "b", "c", "d"])
    session = gateway.sessions.open("e")
    first = await session.generate([1, 2, 3])
    assert engine.requests[-1].tokens == (1, 2, 3)
    second = await session.generate([1, 2, 3, *first.output_tokens, 9])
    third = await session.generate([1, 2])
    await session.generate([1, 2])
    assert [t.parent for t in session.turns] == [None, 0, None, None]
    assert [t.fork for t in session.turns] == [
        None,
        None,
        ForkReason.EDITED,
        ForkReason.RESAMPLED,
    ]
    assert second.prompt_tokens[-1] == 9
    assert third.text == "c"


async def test_messages_changed_in_place_are_seen_to_have_changed(
    start_gateway: StartGateway,
) -> None:
    gateway, engine = await start_gateway()
    session = gateway.sessions.open("e")
    messages: list[Message] = [{"role": "user", "content": "one"}]
    first = await session.generate(messages)
    messages += [first.message, {"role": "user", "content": "two"}]
    await session.generate(messages)
    messages[0]["content"] = "another"
    third = await session.generate(messages)
    assert third.parent is None
    assert third.fork is ForkReason.EDITED
    assert "another" in engine.decode(third.prompt_tokens)
    assert session.turns[0].new_messages == ({"role": "user", "content": "one"},)


async def test_training_samples_from_the_policy_whatever_the_client_asks(
    start_gateway: StartGateway, caplog: pytest.LogCaptureFixture
) -> None:
    gateway, engine = await start_gateway()
    with caplog.at_level(logging.WARNING):
        for name in ("a", "b"):
            session = gateway.sessions.open(name)
            turn = await session.generate(HI, temperature=0.0)
            assert turn.temperature == 1.0
            assert turn.excluded is None
            assert "temperature=0.0" in session.notices[0]
    assert engine.requests[-1].sampling.temperature == 1.0
    assert len(caplog.records) == 1, "the override is said once, not once an episode"


async def test_a_seeded_session_gives_every_turn_its_own_seed(start_gateway: StartGateway) -> None:
    gateway, engine = await start_gateway()
    seeds = []
    for name in ("a", "b"):
        session = gateway.sessions.open(name, seed=3)
        await session.generate(HI)
        if name == "b":  # a request for no token draws nothing
            assert (await session.generate(HI, max_new_tokens=0)).output_tokens == ()
        await session.generate(HI)
        seeds.append([request.seed for request in list(engine.requests)[-2:]])
        session.close()
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == 2


async def test_a_seeded_session_repeats_its_call_ids(start_gateway: StartGateway) -> None:
    """Some templates show them to the model, so they belong to what must repeat."""
    gateway, _ = await start_gateway('<tool_call>{"name": "now"}</tool_call>')
    ids = []
    for name, seed in (("a", 3), ("b", 3), ("c", None)):
        turn = await gateway.sessions.open(name, seed=seed).generate(HI, tools=TOOLS)
        ids.append(turn.message["tool_calls"][0]["id"])
    assert ids[0] == ids[1] != ids[2]


async def test_a_seed_that_every_caller_sends_does_not_make_siblings_alike(
    start_gateway: StartGateway,
) -> None:
    """Many agents send one: with it all attempts at a task would be the same, and teach nothing."""
    gateway, engine = await start_gateway()
    for name in ("a", "b"):
        session = gateway.sessions.open(name)
        for seed in (42, 43):
            body = {"model": "policy", "messages": HI, "seed": seed}
            status, answer, _ = await call(gateway, body=body, key=session.key)
            assert status == 200, answer
        assert [notice for notice in session.notices if "seed" in notice] == [
            "seed was left out: this session's sampling is fixed by the run"
        ]
    assert {request.seed for request in engine.requests} == {None}


async def test_a_seed_is_honoured_where_the_client_decides(start_gateway: StartGateway) -> None:
    gateway, engine = await start_gateway()
    session = gateway.sessions.open("e", sampling=SamplingPolicy(mode="respect"))
    await call(gateway, body={"model": "policy", "messages": HI, "seed": 42}, key=session.key)
    assert engine.requests[-1].seed == 42
    assert session.notices == []


async def test_the_choices_of_a_seeded_request_differ_and_repeat(
    start_gateway: StartGateway,
) -> None:
    gateway, engine = await start_gateway()
    seeds = []
    for name in ("a", "b"):
        session = gateway.sessions.open(name, sampling=SamplingPolicy(mode="respect"))
        body = {"model": "policy", "messages": HI, "seed": 42, "n": 3}
        await call(gateway, body=body, key=session.key)
        seeds.append([request.seed for request in list(engine.requests)[-3:]])
    assert seeds[0] == seeds[1]
    assert seeds[0][0] == 42
    assert len(set(seeds[0])) == 3


RESPECTED: dict[str, tuple[dict[str, Any], Exclusion | None]] = {
    "its own temperature": ({"temperature": 0.7}, None),
    "greedy": ({"temperature": 0.0}, Exclusion.GREEDY),
    "top_p": ({"top_p": 0.9}, Exclusion.TRUNCATED_DISTRIBUTION),
    "top_k": ({"top_k": 5}, Exclusion.TRUNCATED_DISTRIBUTION),
    "min_p": ({"min_p": 0.1}, Exclusion.TRUNCATED_DISTRIBUTION),
    "penalty": ({"presence_penalty": 0.5}, Exclusion.PENALTY),
    "repetition penalty": ({"repetition_penalty": 1.1}, Exclusion.PENALTY),
    "logit bias": ({"logit_bias": {"1": 5}}, Exclusion.LOGIT_BIAS),
    "nothing": ({}, None),
}


@pytest.mark.parametrize(("asked", "reason"), RESPECTED.values(), ids=RESPECTED)
async def test_respected_sampling_is_context_only_where_it_is_not_the_policys(
    start_gateway: StartGateway, asked: dict[str, Any], reason: Exclusion | None
) -> None:
    from tests.toolbox.gateway_requests import post

    gateway, engine = await start_gateway(sampling=SamplingPolicy(mode="respect"))
    session = gateway.sessions.open("e")
    status, _ = await post(session, gateway, {"messages": HI, **asked})
    assert status == 200
    (turn,) = session.turns
    assert turn.excluded == reason
    assert turn.temperature == (asked.get("temperature") or 1.0)
    assert engine.requests[-1].sampling.temperature == asked.get("temperature", 1.0)
    num = len(turn.output_tokens)
    assert session.excluded == ({reason: num} if reason else {})


async def test_every_field_of_sampling_can_be_asked_for(start_gateway: StartGateway) -> None:
    from tests.toolbox.gateway_requests import post

    gateway, engine = await start_gateway(sampling=SamplingPolicy(mode="respect"))
    session = gateway.sessions.open("e")
    asked = {field.name: 1 for field in fields(Sampling)} | {"logit_bias": {"65": 1}}
    assert (await post(session, gateway, {"messages": HI, **asked}))[0] == 200
    assert asdict(engine.requests[-1].sampling) == asked | {"logit_bias": {65: 1}}


async def test_logprobs_that_are_missing_are_not_trained(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway(Reply([65, 66], stop=False, logprobs=[-1.0, float("nan")]))
    turn = await gateway.sessions.open("e").generate(HI, max_new_tokens=2)
    assert turn.excluded is Exclusion.NO_LOGPROBS


async def test_a_closed_session_takes_no_turn_that_was_under_way(
    start_gateway: StartGateway,
) -> None:
    gateway, engine = await start_gateway("late")
    session = gateway.sessions.open("e")
    started = asyncio.Event()

    async def close_meanwhile(request: object, index: int) -> None:
        started.set()
        if index == 2:
            session.close()

    engine._on_token = close_meanwhile
    with pytest.raises(ApiError, match="closed") as error:
        await session.generate(HI)
    assert error.value.status == 409
    assert session.close() == ()
    with pytest.raises(ApiError, match="closed"):
        await session.generate(HI)
    with pytest.raises(SessionClosedError):
        session.record(await gateway.sessions.open("other").generate(HI))


LIMITS = {
    "turns": SessionLimits(max_turns=1),
    "tokens": SessionLimits(max_tokens=3),
}


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
async def test_a_limit_is_an_outcome(start_gateway: StartGateway, limits: SessionLimits) -> None:
    gateway, engine = await start_gateway("ok")
    session = gateway.sessions.open("e", limits=limits)
    await session.generate(HI)
    assert not session.truncated or limits.max_tokens is not None
    with pytest.raises(ApiError, match="limit") as error:
        await session.generate(HI)
    assert (error.value.status, error.value.code) == (400, "episode_limit_reached")
    assert session.truncated
    assert session.faults == []
    assert engine.num_requests == 1


async def test_only_our_own_limits_truncate_an_episode(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway("a long answer that goes on")
    mine = gateway.sessions.open("mine")
    assert (await mine.generate(HI, max_new_tokens=3)).finish_reason is FinishReason.LENGTH
    assert not mine.truncated
    ours = gateway.sessions.open("ours", limits=SessionLimits(max_new_tokens=3))
    assert len((await ours.generate(HI)).output_tokens) == 3
    assert ours.truncated


async def test_a_prompt_over_the_context_is_an_outcome(start_gateway: StartGateway) -> None:
    gateway, engine = await start_gateway(max_context=64)
    session = gateway.sessions.open("e")
    with pytest.raises(ApiError) as error:
        await session.generate([{"role": "user", "content": "long " * 100}])
    assert (error.value.status, error.value.code) == (400, "context_length_exceeded")
    assert session.truncated
    assert session.faults == []
    assert engine.num_requests == 0


async def test_an_answer_is_cut_where_the_context_ends(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway("word " * 100, max_context=40)
    session = gateway.sessions.open("e")
    turn = await session.generate(HI, max_new_tokens=1000)
    assert len(turn.prompt_tokens) + len(turn.output_tokens) == 40
    assert session.truncated


@pytest.mark.parametrize("fault", [Fault.RAISE, Fault.CLOSE, Fault.ABORT])
async def test_an_engine_fault_is_noted_on_the_session(
    start_gateway: StartGateway, fault: Fault
) -> None:
    gateway, engine = await start_gateway(Reply("some text", fault=fault, after=2))
    session = gateway.sessions.open("e")
    with pytest.raises(ApiError) as error:
        await session.generate(HI)
    assert error.value.status == 503
    assert len(session.faults) == 1
    assert session.turns == []
    assert engine.num_active == 0


async def test_an_engine_that_never_answers_is_a_fault(start_gateway: StartGateway) -> None:
    gateway, engine = await start_gateway(Reply(fault=Fault.HANG), max_request_s=0.05)
    session = gateway.sessions.open("e")
    with pytest.raises(ApiError, match=r"0\.05 s") as error:
        await session.generate(HI)
    assert error.value.status == 504
    assert session.faults == [error.value.message]
    assert engine.num_active == 0


async def test_a_session_closed_before_its_first_token_reaches_no_engine(
    start_gateway: StartGateway,
) -> None:
    """An episode may end between the placing of a request and its sampling."""
    gateway, engine = await start_gateway(Reply(fault=Fault.HANG), max_request_s=30)
    session = gateway.sessions.open("e")
    prepared = await gateway._completer.prepare(session, ChatRequest(messages=tuple(HI)))
    session.close()
    with pytest.raises(ApiError) as error:
        async with asyncio.timeout(60), aclosing(gateway._completer.run(session, prepared)) as run:
            await anext(run)
    assert error.value.code == "session_closed"
    assert (session.faults, engine.num_requests, engine.num_active) == ([], 0, 0)


async def test_n_choices_are_siblings(start_gateway: StartGateway) -> None:
    from tests.toolbox.gateway_requests import post

    gateway, _ = await start_gateway(["a", "b", "c"])
    session = gateway.sessions.open("e")
    status, body = await post(session, gateway, {"messages": HI, "n": 3})
    assert status == 200
    assert sorted(c["message"]["content"] for c in body["choices"]) == ["a", "b", "c"]
    assert len({turn.prompt_tokens for turn in session.turns}) == 1
    assert [turn.fork for turn in session.turns] == [None, *[ForkReason.RESAMPLED] * 2]
    chosen = session.turns[1]
    follow_up = [*HI, chosen.message, {"role": "user", "content": "more"}]
    await post(session, gateway, {"messages": follow_up, "n": 1})


async def test_a_fork_keeps_what_no_turn_has(start_gateway: StartGateway) -> None:
    """Forks at the first token, inside a prompt, inside an answer, at its end; and the same prompt
    again."""
    gateway, _ = await start_gateway("abcdef")
    session = gateway.sessions.open("e")
    said = (await session.generate([5, 6, 7, 8])).output_tokens
    prompts = [
        (9, 6, 7),
        (5, 6, 9),
        (5, 6, 7, 8, *said[:2], 9),
        (5, 6, 7, 8, *said, 9),
        (5, 6, 7, 8),
        (5, 6, 9, *said[:3]),
        (5, 6),
    ]
    for prompt in prompts:
        await session.generate(prompt)
    kept = [(turn.parent, turn.shares_with, turn.num_shared) for turn in session.turns[1:]]
    assert kept == [
        (None, None, 0),
        (None, 0, 2),
        (None, 0, 6),
        (0, 0, 4 + len(said)),
        (None, 0, 4),
        (None, 2, 6),
        (None, 0, 2),
    ]
    assert [turn.prompt_tokens for turn in session.turns[1:]] == prompts
    assert sum(len(turn.new_tokens) for turn in session.turns) == 4 + 3 + 1 + 1 + 1 + 0 + 0 + 0
    turns = session.close()
    trajectories = to_trajectories(Episode("e", Task("t"), turns, Outcome.scored(1.0)))
    assert sum(t.num_trained for t in trajectories) == 8 * len(said)


async def test_an_invalid_call_stays_text_with_a_notice(start_gateway: StartGateway) -> None:
    broken = '<tool_call>\n{"name": calculator}\n</tool_call>'
    gateway, _ = await start_gateway(broken)
    session = gateway.sessions.open("e")
    turn = await session.generate(HI, tools=TOOLS)
    assert turn.text == broken
    assert turn.offers_tools
    assert not (await session.generate(HI)).offers_tools
    assert "malformed tool call" in session.notices[0]


async def test_a_template_that_hides_answers_is_a_fork_at_every_turn_with_that_reason(
    start_gateway: StartGateway, model_dirs: dict[str, Path]
) -> None:
    gateway, engine = await start_gateway("Hello")
    hides = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
    completer = gateway.sessions.open("probe")._completer
    assert isinstance(completer, Completer)
    renderer = Renderer(completer.tokenizer, ChatTemplate(hides))
    gateway.sessions._completer = Completer(
        engine, completer.tokenizer, renderer, max_request_s=10.0
    )
    session = gateway.sessions.open("e")
    messages = list(HI)
    for _turn in range(3):
        turn = await session.generate(messages)
        messages += [turn.message, *HI]
    unstable = ForkReason.TEMPLATE_UNSTABLE
    assert [(t.parent, t.fork) for t in session.turns] == [(None, None), *[(None, unstable)] * 2]


def _text() -> st.SearchStrategy[str]:
    hard = st.sampled_from(
        ["<|im_end|>", "</s>", "🙂", "<tool_call>", "", "\n", "\x00", "</think>"]
    )
    return st.lists(st.one_of(hard, st.text(max_size=8)), max_size=3).map("".join)


def _rewrite(message: Message, how: str) -> Message:
    """The message as some client sends it back, meaning the same."""
    if how == "faithful" or message.get("role") != "assistant":
        return message
    rewritten = {k: v for k, v in message.items() if k != "reasoning_content"}
    if how == "trimmed":
        rewritten["content"] = (message["content"] or "").strip()
    return dict(reversed(rewritten.items()))


@pytest.mark.parametrize("shape", list(TEMPLATES))
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
async def test_trained_tokens_are_the_sampled_tokens(
    start_gateway: StartGateway, shape: str, data: st.DataObject
) -> None:
    """Random conversations, cut off or not, with clients that rewrite: one chain of turns."""
    outputs: list[tuple[int, ...]] = []

    def script(request: Any) -> Reply:
        tokens = tuple(data.draw(st.lists(st.integers(0, 255), max_size=6)))
        return Reply(tokens, stop=data.draw(st.booleans()))

    gateway, _ = await start_gateway(script, shape=shape)
    session = gateway.sessions.open("e")
    messages: list[Message] = [{"role": "user", "content": data.draw(_text())}]
    how = data.draw(st.sampled_from(["faithful", "dropped", "trimmed"]))
    for _turn in range(data.draw(st.integers(1, 4))):
        turn = await session.generate(messages, max_new_tokens=7)
        outputs.append(turn.output_tokens)
        messages.append(_rewrite(turn.message, how))
        messages.append({"role": "user", "content": data.draw(_text())})
    await gateway.aclose()
    for index, turn in enumerate(session.turns):
        assert turn.output_tokens == outputs[index]
        assert turn.fork is None
        assert turn.parent == (index - 1 if index else None)
        if index:
            before = session.turns[index - 1]
            prefix = before.prompt_tokens + before.output_tokens
            assert turn.prompt_tokens[: len(prefix)] == prefix
