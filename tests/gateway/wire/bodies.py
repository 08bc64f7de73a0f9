"""One request with many fields for each path of the gateway."""

from typing import Any

from tests.toolbox.gateway_requests import TOOLS

USER = {"role": "user", "content": [{"type": "text", "text": "Hi"}]}
ANSWER = {
    "role": "assistant",
    "content": None,
    "reasoning_content": "hm",
    "tool_calls": [
        {"id": "c", "type": "function", "function": {"name": "calculator", "arguments": "{}"}}
    ],
}
RESULT = {"role": "tool", "tool_call_id": "c", "content": "2"}
FLAT_TOOL = {"type": "function", **TOOLS[0]["function"]}
ITEMS: list[Any] = [
    {"role": "user", "content": "Hi"},
    {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "x", "text": "hm"}]},
    {"type": "function_call", "call_id": "c", "name": "calculator", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "2"},
    {"type": "custom_tool_call", "call_id": "d", "name": "patch", "input": "x"},
    {"type": "custom_tool_call_output", "call_id": "d", "output": "2"},
]
CUSTOM = {"type": "custom", "name": "patch", "format": {"type": "grammar", "definition": "x"}}
NAMESPACE = {"type": "namespace", "name": "n", "description": "d", "tools": [FLAT_TOOL, CUSTOM]}
OLDER_CALL = {"role": "assistant", "function_call": {"name": "calculator", "arguments": "{}"}}
OLDER_RESULT = {"role": "function", "name": "calculator", "content": "2"}
ALLOWED = {"type": "allowed_tools", "mode": "required", "tools": [FLAT_TOOL]}
BLOCKS: list[Any] = [
    {"role": "user", "content": "Hi"},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": ""},
            {"type": "tool_use", "id": "c", "name": "calculator", "input": {"a": 1}},
        ],
    },
    {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "c", "content": "2", "is_error": True}],
    },
]
BODIES: dict[str, dict[str, Any]] = {
    "chat/completions": {
        "model": "m",
        "messages": [{"role": "system", "content": "s"}, USER, ANSWER, RESULT],
        "tools": TOOLS,
        "tool_choice": {"type": "function", "function": {"name": "calculator"}},
        "stop": ["x"],
        "n": 2,
        "logprobs": True,
        "top_logprobs": 1,
        "logit_bias": {"1": 2},
        "stream_options": {"include_usage": True},
        "response_format": {"type": "text"},
        "chat_template_kwargs": {"enable_thinking": True},
    },
    "chat/completions with functions": {
        "model": "m",
        "messages": [USER, OLDER_CALL, OLDER_RESULT],
        "functions": [TOOLS[0]["function"]],
        "function_call": {"name": "calculator"},
    },
    "chat/completions with custom tools": {
        "model": "m",
        "messages": [USER],
        "tools": [*TOOLS, {"type": "custom", "custom": CUSTOM}],
        "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": TOOLS}},
    },
    "completions": {
        "model": "m",
        "prompt": [[1, 2], "x"],
        "echo": True,
        "max_tokens": 3,
        "stop": "x",
        "n": 1,
    },
    "responses": {
        "model": "m",
        "input": ITEMS,
        "tools": [FLAT_TOOL],
        "tool_choice": {"type": "function", "name": "calculator"},
        "text": {"format": {"type": "text"}},
        "include": ["message.output_text.logprobs"],
        "reasoning": {"effort": "low"},
        "instructions": "s",
    },
    "responses with namespaces": {
        "model": "m",
        "input": ITEMS,
        "tools": [CUSTOM, NAMESPACE, {"type": "web_search"}],
        "tool_choice": {**ALLOWED, "tools": [{**FLAT_TOOL, "namespace": "n"}, CUSTOM]},
        "client_metadata": {"a": "b"},
    },
    "messages": {
        "model": "m",
        "messages": BLOCKS,
        "max_tokens": 9,
        "system": [{"type": "text", "text": "s"}],
        "tools": [
            {"name": "calculator", "input_schema": TOOLS[0]["function"]["parameters"]},
            {"type": "bash_20250124", "name": "bash"},
        ],
        "tool_choice": {"type": "tool", "name": "calculator"},
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "output_config": {"effort": "low"},
    },
    "reward": {"reward": 0.5, "turn": None},
}
