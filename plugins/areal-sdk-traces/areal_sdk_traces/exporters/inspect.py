"""Inspect: a run as one log, an episode a sample, a turn an event of the model, with the exact tokens of each answer.

The attempts at a task are the epochs of its sample.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from areal_sdk import Episode, FinishReason, Message, Turn
from areal_sdk.types import OutcomeKind
from areal_sdk_traces.book import Book, Place
from areal_sdk_traces.conversation import JSON, arguments_of, finite
from areal_sdk_traces.exporters import Source
from areal_sdk_traces.exporters.contents import content_of
from areal_sdk_traces.messages import Lost, read_tools
from areal_sdk_traces.recorded import path_to

_FINISHED = {FinishReason.STOP: "stop", FinishReason.LENGTH: "max_tokens"}
_SCHEMA = (
    *("type", "format", "description", "default", "enum", "anyOf", "required", "pattern"),
    *("minLength", "maxLength", "minimum", "maximum", "examples"),
)
"""The keywords of JSON Schema that the format has, besides those that hold schemas."""


def export(episode: Episode, source: Source, place: Place, book: Book) -> Iterator[JSON]:
    """The sample of an episode, as if it were the first attempt at its task."""
    lost = book.losing(place)
    outcome, turns = episode.outcome, episode.turns
    reward = finite(outcome.reward)
    model = source.model or "areal-sdk"
    began = datetime.fromtimestamp(source.began, UTC)
    events = [_event(episode, index, model, source, lost) for index in range(len(turns))]
    first = events[0]["input"] if events else ""
    last = _messages(path_to(episode, len(turns) - 1), lost) if turns else []
    given = dict(outcome.metrics)
    failed = outcome.kind is OutcomeKind.ERROR
    error = {"message": outcome.message, "traceback": "", "traceback_ansi": ""}
    yield {
        "id": episode.task.id,
        "epoch": 1,
        "uuid": episode.id,
        "input": first,
        "target": "",
        "messages": last,
        "output": events[-1]["output"] if events else {"model": model, "choices": []},
        "scores": {} if reward is None else {"reward": {"value": reward, "metadata": given}},
        "metadata": {"run": source.run, "split": source.split},
        "store": {},
        "events": events,
        "model_usage": {model: _usage(turns)},
        "started_at": began.isoformat(),
        "total_time": episode.duration_s,
        "attachments": {},
        **({"error": error} if failed else {}),
    }


def gathered(samples: Iterable[JSON], source: Source) -> Iterator[JSON]:
    """The log of a run."""
    attempts = Counter[str]()
    kept = []
    for sample in samples:
        attempts[sample["id"]] += 1
        kept.append({**sample, "epoch": attempts[sample["id"]]})
    scored = [sample["scores"]["reward"]["value"] for sample in kept if sample["scores"]]
    mean = {"name": "mean", "value": sum(scored) / len(scored)} if scored else None
    began = datetime.fromtimestamp(source.began, UTC).isoformat()
    yield {
        "version": 2,
        "status": "success",
        "eval": {
            "eval_id": source.run,
            "run_id": source.run,
            "created": began,
            "task": source.agent,
            "task_id": source.run,
            "dataset": {"name": source.agent, "samples": len(attempts)},
            "model": source.model or "areal-sdk",
            "config": {"epochs": max(attempts.values(), default=1)},
        },
        "plan": {"name": "plan", "steps": [{"solver": source.agent, "params": {}}]},
        "results": {
            "total_samples": len(kept),
            "completed_samples": sum("error" not in sample for sample in kept),
            "scores": [
                {
                    "name": "reward",
                    "scorer": "reward",
                    "scored_samples": len(scored),
                    "unscored_samples": len(kept) - len(scored),
                    "metrics": {"mean": mean} if mean else {},
                }
            ],
        },
        "stats": {"started_at": began, "completed_at": ""},
        "samples": kept,
    }


def _event(episode: Episode, index: int, model: str, source: Source, lost: Lost) -> JSON:
    turn = episode.turns[index]
    *prompt, answer = _messages(path_to(episode, index), lost)
    finished = _FINISHED.get(turn.finish_reason, "unknown")
    if finished == "stop" and answer.get("tool_calls"):
        finished = "tool_calls"
    output = {
        "model": model,
        "choices": [{"message": answer, "stop_reason": finished}],
        "usage": _usage([turn]),
        "time": turn.duration_s,
        "metadata": _tokens(turn),
    }
    if finished == "unknown":
        output["error"] = f"the answer has no end: {turn.finish_reason.value}"
    return {
        "event": "model",
        "uuid": f"{episode.id}-{index}",
        "timestamp": datetime.fromtimestamp(source.began + turn.began_s, UTC).isoformat(),
        "working_start": turn.began_s,
        "working_time": turn.duration_s,
        "model": model,
        "input": prompt,
        "tools": [_tool(tool) for tool in read_tools(_tools_of(episode, index))],
        "tool_choice": "auto",
        "config": {"temperature": turn.temperature},
        "output": output,
    }


def _tools_of(episode: Episode, index: int) -> object:
    """The tools of a turn: its own, or those of the turn that it goes on from."""
    turn = episode.turns[index]
    while not turn.details.get("tools") and turn.parent is not None:
        turn = episode.turns[turn.parent]
    return turn.details.get("tools")


def _tokens(turn: Turn) -> JSON:
    """The exact tokens, for which the format has no field."""
    if not turn.output_tokens:
        return {}
    return {
        "prompt_token_ids": turn.prompt_tokens,
        "completion_token_ids": turn.output_tokens,
        "logprobs": turn.logprobs,
        "versions": turn.versions,
    }


def _usage(turns: Iterable[Turn]) -> JSON:
    asked = answered = 0
    for turn in turns:
        asked, answered = asked + turn.num_prompt, answered + len(turn.output_tokens)
    return {
        "input_tokens": asked,
        "output_tokens": answered,
        "total_tokens": asked + answered,
    }


def _messages(messages: Iterable[Message], lost: Lost) -> list[JSON]:
    return [_message(message, lost) for message in messages]


def _message(message: Message, lost: Lost) -> JSON:
    role = message["role"]
    content = content_of(message.get("content"), _image, lost)
    if role == "assistant":
        return _answer(message, content)
    if role == "tool":
        return {"role": role, "tool_call_id": message.get("tool_call_id") or "", "content": content}
    if role in ("system", "user"):
        return {"role": role, "content": content}
    return {"role": "system", "content": content, "metadata": {"role": role}}


def _answer(message: Message, content: str | list[JSON]) -> JSON:
    said: JSON = {"role": "assistant", "content": content}
    if thoughts := message.get("reasoning_content"):
        parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
        said["content"] = [{"type": "reasoning", "reasoning": thoughts}, *parts]
    strange = {}
    for call in message.get("tool_calls") or ():
        function = call["function"]
        arguments = arguments_of(function["arguments"])
        made = {"id": call["id"], "function": function["name"], "type": "function"}
        if not isinstance(arguments, dict):
            strange[call["id"]] = function["arguments"]
            made["parse_error"] = "the arguments are no JSON object"
            arguments = {}
        said.setdefault("tool_calls", []).append({**made, "arguments": arguments})
    if strange:  # the format has no place for arguments that are no object
        said["metadata"] = {"arguments": strange}
    return said


def _tool(tool: JSON) -> JSON:
    """The tool, and beside it the definition as it was, since the format has not all of JSON Schema."""
    function = tool["function"]
    parameters = _schema(function.get("parameters") or {})
    return {
        "name": function["name"],
        "description": function.get("description") or "",
        "parameters": {**parameters, "type": "object"},
        "options": {"function": function},
    }


def _schema(given: Mapping[str, Any]) -> JSON:
    found = {name: given[name] for name in _SCHEMA if name in given}
    if isinstance(given.get("anyOf"), list):
        found["anyOf"] = [_schema(one) for one in given["anyOf"] if isinstance(one, dict)]
    if isinstance(given.get("items"), dict):
        found["items"] = _schema(given["items"])
    if isinstance(given.get("properties"), dict):
        inner = given["properties"].items()
        found["properties"] = {name: _schema(one) for name, one in inner if isinstance(one, dict)}
    return found


def _image(url: str) -> JSON:
    return {"type": "image", "image": url}
