"""Exports of each format, written from the published schemas: the same ten conversations, and damage among them.

Conversation N asks for a sum with a tool, gets the result and an answer. Each export is a list of lines.
"""

import json
from collections.abc import Callable
from typing import Any

JSON = dict[str, Any]

NUM = 10
TOOL: JSON = {
    "name": "add",
    "description": "Adds.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
}
OPENAI_TOOL: JSON = {"type": "function", "function": TOOL}


def chat(n: int) -> list[JSON]:
    """The conversation in OpenAI's shape."""
    return [
        {"role": "system", "content": "Use the tool."},
        {"role": "user", "content": f"What is {n}+1?"},
        {"role": "assistant", "content": None, "tool_calls": [call(n)]},
        {"role": "tool", "tool_call_id": f"call_{n}", "content": str(n + 1)},
        {"role": "assistant", "content": f"It is {n + 1}."},
    ]


def call(n: int) -> JSON:
    function = {"name": "add", "arguments": json.dumps({"a": n})}
    return {"id": f"call_{n}", "type": "function", "function": function}


def parts(message: JSON) -> JSON:
    """The message in OpenTelemetry's shape."""
    if message["role"] == "tool":
        result = {"type": "tool_call_response", "id": message["tool_call_id"]}
        return {"role": "tool", "parts": [{**result, "response": message["content"]}]}
    found: list[JSON] = []
    if message["content"]:
        found.append({"type": "text", "content": message["content"]})
    for one in message.get("tool_calls", ()):
        arguments = json.loads(one["function"]["arguments"])
        found.append({"type": "tool_call", "id": one["id"], "name": "add", "arguments": arguments})
    return {"role": message["role"], "parts": found}


def typed(value: Any) -> JSON:
    return {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}


def otlp(n: int, at: int, attributes: JSON) -> JSON:
    span = {
        "traceId": f"{n:032x}",
        "spanId": f"{n:08x}{at:08x}",
        "name": "chat tiny",
        "startTimeUnixNano": f"{n:05d}{at}",
        "attributes": [{"key": key, "value": typed(value)} for key, value in attributes.items()],
    }
    return {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}


def otel(n: int) -> list[Any]:
    rows = []
    for at, end in enumerate((2, 4)):
        attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "openai",
            "gen_ai.request.model": "tiny",
            "gen_ai.system_instructions": json.dumps(
                [{"type": "text", "content": "Use the tool."}]
            ),
            "gen_ai.input.messages": json.dumps([parts(one) for one in chat(n)[1:end]]),
            "gen_ai.output.messages": json.dumps(
                [{**parts(chat(n)[end]), "finish_reason": "stop"}]
            ),
            "gen_ai.tool.definitions": json.dumps([{"type": "function", **TOOL}]),
        }
        rows.append(otlp(n, at, attributes))
    return rows


def openinference(n: int) -> list[Any]:
    rows = []
    for at, end in enumerate((2, 4)):
        attributes: JSON = {"openinference.span.kind": "LLM", "llm.model_name": "tiny"}
        attributes["llm.tools.0.tool.json_schema"] = json.dumps(OPENAI_TOOL)
        for kind, said in (("input", chat(n)[:end]), ("output", [chat(n)[end]])):
            for index, one in enumerate(said):
                start = f"llm.{kind}_messages.{index}.message."
                attributes[start + "role"] = one["role"]
                if one["content"]:
                    attributes[start + "content"] = one["content"]
                if one["role"] == "tool":
                    attributes[start + "tool_call_id"] = one["tool_call_id"]
                for called in one.get("tool_calls", ()):
                    begin = start + "tool_calls.0.tool_call."
                    attributes[begin + "id"] = called["id"]
                    attributes[begin + "function.name"] = "add"
                    attributes[begin + "function.arguments"] = called["function"]["arguments"]
        rows.append(
            {
                "name": "llm",
                "context": {"trace_id": f"t{n}", "span_id": f"s{n}-{at}"},
                "parent_id": None,
                "start_time": f"2026-01-01T00:00:{n:02d}.{at}Z",
                "attributes": attributes,
            }
        )
    return rows


def langfuse(n: int) -> list[Any]:
    rows: list[Any] = [
        {
            "id": f"o{n}-{at}",
            "trace_id": f"t{n}",
            "type": "GENERATION",
            "start_time": f"2026-01-01 00:00:{n:02d}.{at}",
            "input": json.dumps({"messages": chat(n)[:end], "tools": [OPENAI_TOOL]}),
            "output": json.dumps(chat(n)[end]),
            "provided_model_name": "tiny",
        }
        for at, end in enumerate((2, 4))
    ]
    score = {"id": f"s{n}", "trace_id": f"t{n}", "name": "reward", "value": 1.0}
    return [*rows, {**score, "data_type": "NUMERIC"}]


def langsmith(n: int) -> list[Any]:
    kinds = {"system": "System", "user": "Human", "assistant": "AI", "tool": "Tool"}

    def lc(one: JSON) -> JSON:
        kwargs: JSON = {"content": one["content"] or ""}
        if one["role"] == "tool":
            kwargs["tool_call_id"] = one["tool_call_id"]
        if "tool_calls" in one:
            made = one["tool_calls"][0]
            arguments = json.loads(made["function"]["arguments"])
            kwargs["tool_calls"] = [{"id": made["id"], "name": "add", "args": arguments}]
        name = ["langchain_core", "messages", kinds[one["role"]] + "Message"]
        return {"lc": 1, "type": "constructor", "id": name, "kwargs": kwargs}

    return [
        {
            "id": f"r{n}-{at}",
            "trace_id": f"t{n}",
            "run_type": "llm",
            "dotted_order": f"2026{n:03d}{at}",
            "inputs": {"messages": [[lc(one) for one in chat(n)[:end]]]},
            "outputs": {"generations": [[{"text": "", "message": lc(chat(n)[end])}]]},
            "extra": {"invocation_params": {"model": "tiny", "tools": [OPENAI_TOOL]}},
            "feedback_stats": {"reward": {"n": 1, "avg": 1.0}},
        }
        for at, end in enumerate((2, 4))
    ]


def openai(n: int) -> list[Any]:
    return [
        {
            "request": {"model": "tiny", "messages": chat(n)[:end], "tools": [OPENAI_TOOL]},
            "response": {
                "object": "chat.completion",
                "model": "tiny",
                "created": n * 10 + at,
                "choices": [{"index": 0, "message": chat(n)[end], "finish_reason": "stop"}],
            },
        }
        for at, end in enumerate((2, 4))
    ]


def claude_code(n: int) -> list[Any]:
    called = {"type": "tool_use", "id": f"call_{n}", "name": "add", "input": {"a": n}}
    result = {"type": "tool_result", "tool_use_id": f"call_{n}", "content": str(n + 1)}
    said: list[tuple[str, Any]] = [
        ("user", f"What is {n}+1?"),
        ("assistant", [called]),
        ("user", [result]),
        ("assistant", [{"type": "text", "text": f"It is {n + 1}."}]),
    ]
    return [
        {
            "type": role,
            "uuid": f"u{n}-{at}",
            "parentUuid": f"u{n}-{at - 1}" if at else None,
            "sessionId": f"session-{n}",
            "isSidechain": False,
            "message": {
                "role": role,
                "content": content,
                **({"id": f"msg_{n}_{at}", "model": "tiny"} if role == "assistant" else {}),
            },
        }
        for at, (role, content) in enumerate(said)
    ]


def codex(n: int) -> list[Any]:
    function = {"name": "add", "arguments": json.dumps({"a": n}), "call_id": f"call_{n}"}
    asked = [{"type": "input_text", "text": f"What is {n}+1?"}]
    answer = [{"type": "output_text", "text": f"It is {n + 1}."}]
    items: list[JSON] = [
        {"type": "message", "role": "user", "content": asked},
        {"type": "function_call", **function},
        {"type": "function_call_output", "call_id": f"call_{n}", "output": str(n + 1)},
        {"type": "message", "role": "assistant", "content": answer},
    ]
    meta = {"id": f"session-{n}", "base_instructions": {"text": "Use the tool."}}
    return [
        {"type": "session_meta", "payload": meta},
        *({"type": "response_item", "payload": item} for item in items),
    ]


def atif(n: int) -> list[Any]:
    made = {"tool_call_id": f"call_{n}", "function_name": "add", "arguments": {"a": n}}
    observed = {"results": [{"source_call_id": f"call_{n}", "content": str(n + 1)}]}
    steps: list[JSON] = [
        {"source": "system", "message": "Use the tool."},
        {"source": "user", "message": f"What is {n}+1?"},
        {"source": "agent", "message": "", "tool_calls": [made], "observation": observed},
        {"source": "agent", "message": f"It is {n + 1}."},
    ]
    agent = {"name": "a", "version": "1", "tool_definitions": [OPENAI_TOOL]}
    numbered = [{"step_id": index, **step} for index, step in enumerate(steps, start=1)]
    head = {"schema_version": "ATIF-v1.8", "session_id": f"session-{n}", "agent": agent}
    return [{**head, "steps": numbered}]


def verifiers(n: int) -> list[Any]:
    nodes: list[JSON] = []
    for index, one in enumerate(chat(n)):
        message = dict(one)
        if "tool_calls" in one:
            arguments = one["tool_calls"][0]["function"]["arguments"]
            made = {"id": f"call_{n}", "type": "function", "name": "add", "arguments": arguments}
            message["tool_calls"] = [made]
        node = {"message": message, "sampled": one["role"] == "assistant"}
        nodes.append(node if not index else {"parent": index - 1, **node})
    reward = {"correct": {"score": 1.0, "weight": 1.0}}
    trace = {"id": f"trace-{n}", "tools": [TOOL], "nodes": nodes, "rewards": reward}
    return [{"id": f"episode-{n}", "ok": True, "traces": [trace]}]


def inspect(n: int) -> list[Any]:
    """A sample of two calls. The history of the second is in a pool, and a long text is an attachment."""
    said: list[JSON] = []
    for one in chat(n):
        message = {**one, "content": one["content"] or ""}
        if "tool_calls" in one:
            made = {"id": f"call_{n}", "function": "add", "type": "function", "arguments": {"a": n}}
            message["tool_calls"] = [made]
        said.append(message)
    said[0]["content"] = "attachment://a1"
    tool = {"name": "add", "description": "Adds.", "parameters": TOOL["parameters"]}

    def event(given: JSON, end: int) -> JSON:
        choice = {"message": said[end], "stop_reason": "stop"}
        output = {"model": "tiny", "choices": [choice]}
        return {"event": "model", "model": "tiny", "tools": [tool], "output": output, **given}

    judge = event({"input": [said[1]], "span_id": "s"}, 4)
    events = [
        event({"input": said[:2]}, 2),
        {"event": "tool", "id": f"call_{n}"},
        event({"input": [], "input_refs": [[0, 2], [2, 4]]}, 4),
    ]
    if n == 9:  # what a scorer asks is no conversation of the policy
        events += [{"event": "span_begin", "type": "scorers", "id": "s"}, judge]
    sample = {
        "id": n,
        "epoch": 1,
        "messages": said,
        "events": events,
        "events_data": {"messages": said[:4], "calls": []},
        "attachments": {"a1": "Use the tool."},
        "scores": {"match": {"value": "C"}},
    }
    about = {"eval_id": f"eval-{n}", "task": "sums", "model": "tiny"}
    return [{"version": 2, "status": "success", "eval": about, "samples": [sample]}]


EXPORTS: dict[str, Callable[[int], list[Any]]] = {
    "otel": otel,
    "openinference": openinference,
    "langfuse": langfuse,
    "langsmith": langsmith,
    "openai": openai,
    "claude-code": claude_code,
    "codex": codex,
    "atif": atif,
    "verifiers": verifiers,
    "inspect": inspect,
}

DAMAGE: dict[str, list[Any]] = {
    "otel": [
        otlp(90, 0, {"gen_ai.operation.name": "chat", "gen_ai.input.messages": "[{"}),
        otlp(91, 0, {"gen_ai.operation.name": "chat", "gen_ai.request.model": "tiny"}),
        {"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "chat", "spanId": "1"}]}]}]},
        {"resourceSpans": 3},
    ],
    "openinference": [
        {"name": "llm", "context": {"trace_id": "x"}, "attributes": {}},
        {
            "context": {"trace_id": "x", "span_id": "y"},
            "attributes": {"openinference.span.kind": "LLM", "llm.model_name": "tiny"},
        },
        [],
    ],
    "langfuse": [
        {
            "id": "o",
            "trace_id": "x",
            "type": "GENERATION",
            "input": [{"role": "user", "content": "?"}],
        },
        {"id": "o", "trace_id": "x", "type": "GENERATION", "output": "4"},
        {"trace_id": "x", "type": "GENERATION", "input": [{"role": "wizard"}], "output": "4"},
        "row",
    ],
    "langsmith": [
        {"id": "r", "run_type": "llm", "inputs": {"messages": []}, "outputs": None},
        {"id": "r", "run_type": "llm", "inputs": {"messages": [{"role": "user"}]}, "outputs": {}},
        {"id": "r", "run_type": "llm", "error": "429"},
        {"run_type": "llm"},
        7,
    ],
    "openai": [
        {"request": {"messages": chat(0)[:2]}, "response": {"choices": []}},
        {"request": {"messages": "?"}, "response": {"choices": [{"message": chat(0)[4]}]}},
        {"custom_id": "c", "response": {"status_code": 200, "body": {}}},
        {"messages": [{"role": "user", "content": "alone"}]},
        None,
    ],
    "claude-code": [
        {"type": "user", "uuid": "x1", "sessionId": "x", "message": {"content": 4}},
        {"type": "user", "sessionId": "x", "message": {"content": "no uuid"}},
        {
            "type": "assistant",
            "uuid": "x2",
            "parentUuid": "x1",
            "sessionId": "x",
            "message": {"id": "m", "content": []},
        },
        {"message": {}},
    ],
    "codex": [
        {"type": "response_item", "payload": {"type": "function_call", "arguments": "{}"}},
        {"type": "response_item", "payload": {"type": "function_call_output", "output": "4"}},
        {"type": "response_item"},
        4,
    ],
    "atif": [
        {"schema_version": "ATIF-v1.8", "agent": {"name": "a"}, "steps": []},
        {"schema_version": "ATIF-v1.8", "agent": {}, "steps": [{"source": "robot", "message": ""}]},
        {"schema_version": "ATIF-v2.0", "agent": {}, "steps": []},
        {"agent": {}},
    ],
    "verifiers": [
        {"id": "e", "traces": [], "errors": [{"type": "Timeout"}]},
        {"id": "e", "traces": [{"id": "t", "nodes": [{"parent": 4, "message": chat(0)[1]}]}]},
        {"id": "e", "traces": [{"id": "t", "nodes": [{"message": {"role": "user"}}]}]},
        {"prompt": "?"},
    ],
    "inspect": [
        {"status": "error", "eval": {"eval_id": "e"}, "samples": []},
        {"id": 1, "epoch": 1, "messages": [], "error": {"message": "Timeout"}},
        {"id": 1, "events": [{"event": "model", "input": [], "input_refs": [[0, 4]]}]},
        {"id": 1, "messages": [{"role": "system", "content": "attachment://none"}]},
        [],
    ],
}
"""Damaged rows of each format. None of them can be read."""
