"""Episodes arrive at a collector as traces: calls, tools, rewards, and texts only where a user asked for them."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from otel_collector import Collector, collecting

from areal_sdk import Agent, ConfigError, Episode, EpisodeContext, Outcome, Task
from areal_sdk.testing import assistant, check_plugin, make_episode, run_agent, tool_call
from areal_sdk.types import ErrorKind
from areal_sdk_otel.observer import Otel

SETTINGS = {"model": "/models/tiny", "agent": "/home/me/adder.py"}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


class Adder(Agent):
    """Asks for a sum by a tool, and tells the answer."""

    async def run(self, task: Task, context: EpisodeContext) -> Outcome:
        history: list[dict[str, Any]] = [{"role": "user", "content": "2 + 3?"}]
        turn = await context.generate(history, tools=TOOLS)
        (call,) = turn.message["tool_calls"]
        result = {"role": "tool", "tool_call_id": call["id"], "content": "five"}
        await context.generate([*history, turn.message, result], tools=TOOLS)
        return Outcome.scored(
            0.5, success=False, turn_rewards=(0.25, None), metrics={"reward/style": 0.75}
        )


async def adding() -> Episode:
    return await run_agent(Adder(), {}, engine=[tool_call("add", a=2, b=3), "It is five."])


async def sent(episode: Episode, collector: Collector, *, content: bool = False) -> None:
    """One run with this episode."""
    observer = Otel(endpoint=collector.url, content=content, metrics_port=0, finish_s=60.0)
    observer.on_run_start("my-run", "runs/my-run", SETTINGS)
    observer.on_episode(episode, "")
    await asyncio.to_thread(observer.on_run_end, "runs/my-run")


async def test_an_episode_is_a_trace_of_its_calls_and_tools() -> None:
    episode = await adding()
    async with collecting() as collector:
        await sent(episode, collector)
    (root,) = collector.named("invoke_agent")
    calls, (tool,) = collector.named("chat"), collector.named("execute_tool")
    assert root["name"] == "invoke_agent adder.py"
    assert [call["name"] for call in calls] == ["chat tiny"] * 2
    assert {span["traceId"] for span in collector.spans} == {root["traceId"]}
    assert "parentSpanId" not in root
    assert {span["parentSpanId"] for span in (*calls, tool)} == {root["spanId"]}
    assert (len(root["traceId"]), len(root["spanId"])) == (32, 16)
    assert root["values"]["gen_ai.conversation.id"] == episode.id
    assert root["values"]["areal_sdk.reward"] == 0.5
    assert calls[0]["values"]["gen_ai.operation.name"] == "chat"
    assert calls[0]["values"]["gen_ai.provider.name"] == "areal_sdk"
    assert calls[1]["values"]["gen_ai.usage.input_tokens"] == episode.turns[1].num_prompt
    assert calls[1]["values"]["gen_ai.usage.output_tokens"] == len(episode.turns[1].output_tokens)
    assert calls[0]["values"]["gen_ai.response.finish_reasons"] == ["stop"]
    assert tool["values"]["gen_ai.tool.name"] == "add"
    resource = collector.resources[0]
    assert (resource["service.name"], resource["service.instance.id"]) == ("areal-sdk", "my-run")


async def test_a_tool_runs_between_the_call_that_asks_and_the_one_that_answers() -> None:
    async with collecting() as collector:
        await sent(await adding(), collector)
    (root,), (tool,) = collector.named("invoke_agent"), collector.named("execute_tool")
    first, second = collector.named("chat")
    assert tool["startTimeUnixNano"] == first["endTimeUnixNano"]
    assert tool["endTimeUnixNano"] == second["startTimeUnixNano"]
    for span in collector.spans:
        assert int(root["startTimeUnixNano"]) <= int(span["startTimeUnixNano"])
        assert int(span["endTimeUnixNano"]) <= int(root["endTimeUnixNano"])


async def test_a_call_that_nobody_answered_is_no_tool_span() -> None:
    episode = await adding()
    async with collecting() as collector:
        await sent(replace(episode, turns=episode.turns[:1]), collector)
    assert not collector.named("execute_tool")


async def test_rewards_are_evaluation_results_of_their_spans() -> None:
    async with collecting() as collector:
        await sent(await adding(), collector)
    (root,), calls = collector.named("invoke_agent"), collector.named("chat")
    assert {event["eventName"] for event in collector.events} == {"gen_ai.evaluation.result"}
    told = {
        (event["spanId"], event["values"]["gen_ai.evaluation.name"]): event["values"]
        for event in collector.events
    }
    assert set(told) == {
        (root["spanId"], "reward"),
        (root["spanId"], "style"),
        (calls[0]["spanId"], "reward"),
    }
    whole = told[root["spanId"], "reward"]
    assert whole["gen_ai.evaluation.score.value"] == 0.5
    assert whole["gen_ai.evaluation.score.label"] == "fail"
    assert told[root["spanId"], "style"]["gen_ai.evaluation.score.value"] == 0.75
    assert told[calls[0]["spanId"], "reward"]["gen_ai.evaluation.score.value"] == 0.25


@pytest.mark.parametrize(
    ("outcome", "label", "error"),
    [
        (Outcome.abstained("no key"), "abstained", None),
        (Outcome.failed(ErrorKind.REWARD, "ValueError: no box"), None, "reward"),
    ],
)
async def test_a_missing_verdict_has_no_score(
    outcome: Outcome, label: str | None, error: str | None
) -> None:
    async with collecting() as collector:
        await sent(replace(make_episode("hello"), outcome=outcome), collector)
    (event,), (root,) = collector.events, collector.named("invoke_agent")
    assert "gen_ai.evaluation.score.value" not in event["values"]
    assert event["values"].get("gen_ai.evaluation.score.label") == label
    assert event["values"].get("error.type") == root["values"].get("error.type") == error
    assert event["values"]["gen_ai.evaluation.explanation"] == outcome.message
    assert ("status" in root) == (error is not None)


async def test_texts_stay_in_the_run_unless_they_are_asked_for() -> None:
    episode = await adding()
    async with collecting() as closed, collecting() as open_:
        await sent(episode, closed)
        await sent(episode, open_, content=True)
    kept = b"".join(body for _, body in closed.bodies)
    for text in (b"2 + 3?", b"five", b"arguments"):
        assert text not in kept
    first, second = open_.named("chat")
    (tool,) = open_.named("execute_tool")
    said = json.loads(first["values"]["gen_ai.input.messages"])
    assert said == [{"role": "user", "parts": [{"type": "text", "content": "2 + 3?"}]}]
    (answer,) = json.loads(first["values"]["gen_ai.output.messages"])
    assert (answer["finish_reason"], answer["parts"][0]["name"]) == ("stop", "add")
    (result,) = json.loads(second["values"]["gen_ai.input.messages"])
    assert result["parts"][0]["response"] == "five"
    assert tool["values"]["gen_ai.tool.call.result"] == "five"
    assert json.loads(tool["values"]["gen_ai.tool.call.arguments"]) == {"a": 2, "b": 3}


async def test_hostile_text_arrives_as_valid_unicode() -> None:
    text = "\ud800<script>\x00\x1b[31m" + "x" * 2_000_000
    name = "\udfff" * 3
    episode = make_episode([{"role": "user", "content": text}, assistant(text, (name, "{\ud800"))])
    failed = replace(episode, outcome=Outcome.failed(ErrorKind.AGENT, text))
    async with collecting() as collector:
        await sent(failed, collector, content=True)
    (root,), (call,) = collector.named("invoke_agent"), collector.named("chat")
    assert len(root["status"]["message"]) == 1000
    (answer,) = json.loads(call["values"]["gen_ai.output.messages"])
    assert answer["parts"][0]["content"].startswith("?<script>\x00\x1b[31mx")
    assert answer["parts"][1]["name"] == "???"


async def test_headers_of_the_environment_go_with_every_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Basic%20YTpi")
    async with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        observer = Otel(metrics_port=0, finish_s=60.0)
        observer.on_run_start("my-run", "runs/my-run", SETTINGS)
        observer.on_eval_episode("after", "eval", make_episode("yes"))
        await asyncio.to_thread(observer.on_run_end, "runs/my-run")
    assert {headers["Authorization"] for headers in collector.headers} == {"Basic YTpi"}
    assert collector.named("invoke_agent")[0]["values"]["areal_sdk.split"] == "eval"


def test_addresses_are_checked_before_the_run() -> None:
    with pytest.raises(ConfigError, match=r"endpoint = 'localhost:4318': give an address such as"):
        Otel(endpoint="localhost:4318")
    with pytest.raises(ConfigError, match=r"metrics_port = 94640: give a port, or 0"):
        Otel(metrics_port=94640)


def test_a_run_that_never_began_ends_without_a_word(tmp_path: Path) -> None:
    Otel().on_run_end(str(tmp_path))


async def test_the_installed_plugin_keeps_every_contract() -> None:
    assert "observer 'otel'" in await check_plugin("areal-sdk-otel")
