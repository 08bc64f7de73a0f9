"""verifiers: an episode a row, whose trace is a graph of messages. The tokens along a path are those of its last call.

A call that cannot go on from the recorded tokens begins at a root of its own, as its prompt did.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from areal_sdk import Episode, FinishReason, Message, Turn
from areal_sdk.types import OutcomeKind
from areal_sdk_traces.book import Book, Place
from areal_sdk_traces.conversation import JSON, finite
from areal_sdk_traces.exporters import Source
from areal_sdk_traces.exporters.contents import content_of
from areal_sdk_traces.messages import Lost, read_tools

_FINISHED = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}


def export(episode: Episode, source: Source, place: Place, book: Book) -> Iterator[JSON]:
    outcome = episode.outcome
    task = {"type": source.agent, "data": {"id": episode.task.id}}
    nodes, calls = _graph(episode, source, book.losing(place))
    reward = finite(outcome.reward)
    failed = outcome.kind is OutcomeKind.ERROR
    errors = [{"type": str(outcome.error), "message": outcome.message}] if failed else []
    state = {"ok": not failed, "errors": errors}
    trace = {
        "id": episode.id,
        "task": task,
        "agent": {"config": {"model": source.model or None}},
        "tools": [],
        "nodes": nodes,
        "calls": calls,
        "rewards": {} if reward is None else {"reward": {"score": reward, "weight": 1.0}},
        "metrics": dict(outcome.metrics),
        "info": {"run": source.run, "split": source.split},
        "is_completed": True,
        **state,
    }
    yield {"id": episode.id, "task": task, "traces": [trace], **state}


def _graph(episode: Episode, source: Source, lost: Lost) -> tuple[list[JSON], list[JSON]]:
    nodes: list[JSON] = []
    calls: list[JSON] = []
    ends: list[int] = []
    """The node of each turn's answer."""
    for turn in episode.turns:
        at = None if turn.parent is None else ends[turn.parent]
        num_before = 0 if turn.parent is None else episode.turns[turn.parent].num_tokens
        tools = [] if at is not None else _tools(turn.details.get("tools"))
        said = [*turn.new_messages, {"role": "assistant", **turn.message}]
        for message in said:
            node = {"parent": at, "tools": tools, "message": _message(message, lost)}
            at, tools = len(nodes), []
            nodes.append({name: value for name, value in node.items() if value not in (None, [])})
        ends.append(len(nodes) - 1)
        nodes[-1] |= {"sampled": True, **_tokens(turn, num_before)}
        calls.append(_call(turn, ends[-1], source))
    return nodes, calls


def _tokens(turn: Turn, num_before: int) -> JSON:
    """The tokens that the call adds: what came since the parent's, and the answer."""
    if not turn.output_tokens:
        return {}
    tokens = turn.tokens_from(num_before)
    num_new = len(tokens) - len(turn.output_tokens)
    mask = [False] * num_new + [True] * len(turn.output_tokens)
    return {"token_ids": tokens, "mask": mask, "logprobs": turn.logprobs}


def _call(turn: Turn, node: int, source: Source) -> JSON:
    finished = _FINISHED.get(turn.finish_reason)
    if finished == "stop" and turn.message.get("tool_calls"):
        finished = "tool_calls"
    request = turn.details.get("request") or {}
    call = {
        "node": node,
        "model": request.get("model") or source.model or None,
        "finish_reason": finished,
        "time": {"start": turn.began_s, "end": turn.began_s + turn.duration_s},
    }
    if turn.output_tokens:
        call["usage"] = {
            "prompt_tokens": turn.num_prompt - turn.num_cached,
            "cached_input_tokens": turn.num_cached,
            "completion_tokens": len(turn.output_tokens),
        }
    if finished is None:
        call["error"] = {"type": turn.finish_reason.value, "message": "the answer has no end"}
    return call


def _tools(given: object) -> list[JSON]:
    found = []
    for tool in read_tools(given):
        function = tool["function"]
        known = ("name", "description", "parameters", "strict")
        found.append({"type": "function", **{k: function[k] for k in known if k in function}})
    return found


def _message(message: Message, lost: Lost) -> JSON:
    role = message["role"]
    content = content_of(message.get("content"), _image, lost)
    if role == "assistant":
        if isinstance(content, list):
            content = "\n".join(part["text"] for part in content if "text" in part)
        said: JSON = {"role": role, "content": content or None}
        if message.get("reasoning_content"):
            said["reasoning_content"] = message["reasoning_content"]
        if calls := message.get("tool_calls"):
            said["tool_calls"] = [_tool_call(call) for call in calls]
        return said
    if role == "tool":
        return {"role": role, "tool_call_id": message.get("tool_call_id") or "", "content": content}
    return {"role": "user" if role == "user" else "system", "content": content}


def _tool_call(call: Mapping[str, Any]) -> JSON:
    function = call["function"]
    return {
        "id": call["id"],
        "type": "function",
        "name": function["name"],
        "arguments": function["arguments"],
    }


def _image(url: str) -> JSON:
    return {"type": "image_url", "image_url": {"url": url}}
