"""ATIF 1.8, the trajectory format of Harbor: a document a conversation, with the exact tokens of each answer.

A fork is a document of its own. The steps that both have are marked as copied, so nothing is trained twice.
"""

import mimetypes
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Any

from areal_sdk import Episode, FinishReason, Message, Turn
from areal_sdk_traces.book import Book, Place
from areal_sdk_traces.conversation import JSON, Conversation, arguments_of
from areal_sdk_traces.exporters import Source
from areal_sdk_traces.exporters.contents import content_of
from areal_sdk_traces.messages import Lost
from areal_sdk_traces.recorded import episode_conversations, path_to

_IMAGES = ("image/jpeg", "image/png", "image/gif", "image/webp")
"""The types of images that the format knows."""


def export(episode: Episode, source: Source, place: Place, book: Book) -> Iterator[JSON]:
    for one in episode_conversations(episode, place, book):
        agent = {"name": source.agent, "version": version("areal-sdk")}
        extra = {"run": source.run, "split": source.split, "task": episode.task.id}
        yield {
            "schema_version": "ATIF-v1.8",
            "session_id": episode.id,
            "trajectory_id": one.id,
            "agent": _given(
                agent, model_name=one.model or source.model, tool_definitions=one.tools
            ),
            "steps": _steps(one, episode, book.losing(place)),
            "extra": _given(
                {k: v for k, v in extra.items() if v},
                reward=one.score,
                user=one.user,
                tags=one.tags,
                tree=one.link and one.link.to_json(),
            ),
        }


def _given(fields: JSON, **more: Any) -> JSON:
    """The fields, and those of `more` that have a value."""
    return fields | {name: one for name, one in more.items() if one not in (None, "", (), [], {})}


def _steps(one: Conversation, episode: Episode, lost: Lost) -> list[JSON]:
    last = next(turn for turn in reversed(one.turns) if turn is not None)
    steps: list[JSON] = []
    shared = one.link.num_shared if one.link else 0
    for index, (message, turn) in enumerate(zip(path_to(episode, last), one.turns, strict=True)):
        if message["role"] == "tool":
            _add_result(steps, message, lost)
            continue
        step: JSON = {"step_id": len(steps) + 1}
        if message["role"] != "assistant":
            step |= {"source": "user" if message["role"] == "user" else "system"}
            if message["role"] not in ("user", "system"):
                step["extra"] = {"role": message["role"]}
        else:
            step |= _answer(message, None if turn is None else episode.turns[turn])
            if turn is None or index < shared:
                step = {k: v for k, v in step.items() if k not in ("metrics", "llm_call_count")}
                step["is_copied_context"] = True
        steps.append({**step, "message": content_of(message.get("content"), _image, lost)})
    return steps


def _answer(message: Message, turn: Turn | None) -> JSON:
    calls = [_call(call) for call in message.get("tool_calls") or ()]
    step = _given(
        {"source": "agent"},
        reasoning_content=message.get("reasoning_content"),
        tool_calls=calls,
    )
    if turn is None:
        return step
    step |= _given({"llm_call_count": 1}, metrics=_metrics(turn))
    if turn.finish_reason is not FinishReason.STOP:
        step["extra"] = {"finish_reason": turn.finish_reason.value}
    return step


def _call(call: Mapping[str, Any]) -> JSON:
    """The call. Arguments that are no JSON object are beside it, since the format has no place for them."""
    function = call["function"]
    arguments = arguments_of(function["arguments"])
    made = {"tool_call_id": call["id"], "function_name": function["name"]}
    if isinstance(arguments, dict):
        return {**made, "arguments": arguments}
    return {**made, "arguments": {}, "extra": {"arguments": function["arguments"]}}


def _metrics(turn: Turn) -> JSON:
    if not turn.output_tokens:
        usage = turn.details.get("usage") or {}
        return _given(
            {},
            prompt_tokens=usage.get("prompt_tokens", usage.get("input_tokens")),
            completion_tokens=usage.get("completion_tokens", usage.get("output_tokens")),
        )
    about = {"temperature": turn.temperature, "versions": turn.versions}
    return {
        "prompt_tokens": turn.num_prompt,
        "completion_tokens": len(turn.output_tokens),
        "cached_tokens": turn.num_cached,
        "prompt_token_ids": turn.prompt_tokens,
        "completion_token_ids": turn.output_tokens,
        "logprobs": turn.logprobs,
        "extra": _given(about, fork=turn.fork, excluded=turn.excluded),
    }


def _add_result(steps: list[JSON], message: Message, lost: Lost) -> None:
    """A tool's result belongs to the step that called. Elsewhere it is a step of the system."""
    call_id = message.get("tool_call_id") or ""
    if not steps or not (steps[-1]["source"] == "agent" or "observation" in steps[-1]):
        steps.append({"step_id": len(steps) + 1, "source": "system", "message": ""})
    made = {call["tool_call_id"] for call in steps[-1].get("tool_calls", ())}
    result: JSON = {"content": content_of(message.get("content"), _image, lost)}
    if call_id in made:
        result["source_call_id"] = call_id
    else:  # the format refuses the id of a call that is not of this step
        result["extra"] = {"tool_call_id": call_id}
    steps[-1].setdefault("observation", {"results": []})["results"].append(result)


def _image(path: str) -> JSON | None:
    media_type = mimetypes.guess_type(path)[0]
    known = media_type in _IMAGES
    return {"type": "image", "source": {"media_type": media_type, "path": path}} if known else None
