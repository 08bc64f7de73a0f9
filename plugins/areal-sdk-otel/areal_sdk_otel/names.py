"""Every name that leaves a run, in one table. The conventions still change; then this file does, and no other.

`gen_ai.*` and `error.type` are those of OpenTelemetry's semantic conventions for generative AI, version 0.1.0.
`areal_sdk.*` is what the conventions have no name for.
"""

from enum import StrEnum
from typing import Final


class Operation(StrEnum):
    """The value of `gen_ai.operation.name`, and the first word of a span's name."""

    EPISODE = "invoke_agent"
    CALL = "chat"
    TOOL = "execute_tool"


class Name(StrEnum):
    """The key of an attribute."""

    OPERATION = "gen_ai.operation.name"
    PROVIDER = "gen_ai.provider.name"
    AGENT = "gen_ai.agent.name"
    CONVERSATION = "gen_ai.conversation.id"
    MODEL = "gen_ai.request.model"
    TEMPERATURE = "gen_ai.request.temperature"
    FINISH_REASONS = "gen_ai.response.finish_reasons"
    FIRST_CHUNK_S = "gen_ai.response.time_to_first_chunk"
    INPUT_TOKENS = "gen_ai.usage.input_tokens"
    OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
    CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
    INPUT_MESSAGES = "gen_ai.input.messages"
    OUTPUT_MESSAGES = "gen_ai.output.messages"
    TOOL_DEFINITIONS = "gen_ai.tool.definitions"
    TOOL = "gen_ai.tool.name"
    TOOL_TYPE = "gen_ai.tool.type"
    TOOL_CALL = "gen_ai.tool.call.id"
    TOOL_ARGUMENTS = "gen_ai.tool.call.arguments"
    TOOL_RESULT = "gen_ai.tool.call.result"
    EVALUATION = "gen_ai.evaluation.name"
    SCORE = "gen_ai.evaluation.score.value"
    LABEL = "gen_ai.evaluation.score.label"
    EXPLANATION = "gen_ai.evaluation.explanation"
    ERROR = "error.type"

    TASK = "areal_sdk.task"
    SOURCE = "areal_sdk.source"
    SPLIT = "areal_sdk.split"
    GROUP = "areal_sdk.group"
    SIBLING = "areal_sdk.sibling"
    ATTEMPT = "areal_sdk.attempt"
    REWARD = "areal_sdk.reward"
    SUCCESS = "areal_sdk.success"
    DROPPED = "areal_sdk.dropped"
    TRUNCATED = "areal_sdk.truncated"
    TURN = "areal_sdk.turn"
    CONTINUES = "areal_sdk.continues"
    OLDEST_VERSION = "areal_sdk.version.oldest"
    NEWEST_VERSION = "areal_sdk.version.newest"
    FORK = "areal_sdk.fork"
    EXCLUDED = "areal_sdk.excluded"

    SERVICE = "service.name"
    SERVICE_VERSION = "service.version"
    SERVICE_INSTANCE = "service.instance.id"


EVALUATION_EVENT: Final = "gen_ai.evaluation.result"
PROVIDER: Final = "areal_sdk"
FUNCTION: Final = "function"
"""The value of `gen_ai.tool.type`: the agent runs the tool."""
