"""The forms in which families of models write tool calls."""

from collections.abc import Iterable

from areal_sdk.gateway.tool_calls.native import DEEPSEEK, GLM, HERMES, LLAMA, MISTRAL, QWEN_CODER
from areal_sdk.gateway.tool_calls.plain import PLAIN, weave, with_plain_tools, without_plain_tools
from areal_sdk.tool_calls import ToolFormat

FORMATS = {f.name: f for f in (GLM, QWEN_CODER, DEEPSEEK, MISTRAL, HERMES, LLAMA, PLAIN)}
"""The built-in tool formats by name, in the order in which `choose_format` tries them."""


def choose_format(
    template_source: str, formats: Iterable[ToolFormat] = tuple(FORMATS.values())
) -> ToolFormat:
    """The format that a chat template with tools of its own speaks.

    If the template could speak several formats, the first of them counts.
    """
    for tool_format in formats:
        if any(word in template_source for word in tool_format.detect):
            return tool_format
    return HERMES


__all__ = ["FORMATS", "choose_format", "weave", "with_plain_tools", "without_plain_tools"]
