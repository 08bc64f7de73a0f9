"""How each family of models writes tool calls."""

from areal_sdk.gateway.formats.deepseek import DEEPSEEK
from areal_sdk.gateway.formats.glm import GLM, QWEN_CODER
from areal_sdk.gateway.formats.hermes import HERMES
from areal_sdk.gateway.formats.llama import LLAMA
from areal_sdk.gateway.formats.mistral import MISTRAL
from areal_sdk.gateway.formats.plain import PLAIN, weave
from areal_sdk.gateway.parsers import ToolFormat

FORMATS = {f.name: f for f in (GLM, QWEN_CODER, DEEPSEEK, MISTRAL, HERMES, LLAMA, PLAIN)}
"""By name; where a chat template could speak several, the first whose words it holds."""


def choose_format(template_source: str) -> ToolFormat:
    """The format that a chat template with tools of its own speaks."""
    for tool_format in FORMATS.values():
        if any(word in template_source for word in tool_format.detect):
            return tool_format
    return HERMES


__all__ = ["FORMATS", "choose_format", "weave"]
