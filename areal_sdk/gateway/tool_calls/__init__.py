"""The forms in which families of models write tool calls."""

from areal_sdk.gateway.tool_calls.native import DEEPSEEK, GLM, HERMES, LLAMA, MISTRAL, QWEN_CODER
from areal_sdk.gateway.tool_calls.parser import ToolFormat
from areal_sdk.gateway.tool_calls.plain import PLAIN, weave, with_plain_tools, without_plain_tools

FORMATS = {f.name: f for f in (GLM, QWEN_CODER, DEEPSEEK, MISTRAL, HERMES, LLAMA, PLAIN)}
"""Tool formats by name. If a chat template could speak several, the first whose words it holds
counts."""


def choose_format(template_source: str) -> ToolFormat:
    """The format that a chat template with tools of its own speaks."""
    for tool_format in FORMATS.values():
        if any(word in template_source for word in tool_format.detect):
            return tool_format
    return HERMES


__all__ = ["FORMATS", "choose_format", "weave", "with_plain_tools", "without_plain_tools"]
