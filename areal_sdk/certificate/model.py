"""The parts of a model that decide its tokens, read from its directory. No weights, no torch."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path

import orjson

from areal_sdk.gateway.tokens.renderer import Renderer
from areal_sdk.gateway.tokens.template import ChatTemplate
from areal_sdk.gateway.tokens.tokenizer import Tokenizer
from areal_sdk.gateway.tool_calls import FORMATS
from areal_sdk.models.families import read_optional, stop_tokens
from areal_sdk.tool_calls import ToolFormat

CHECKS = 2
"""Version of the checks. Raise it when the checks, or the replay, change: older certificates then no longer count."""

_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
)

TODAY = datetime(2024, 5, 17, 12)
"""The time that templates are given."""


@dataclass(frozen=True, slots=True)
class ChatModel:
    """A model as the gateway sees it."""

    tokenizer: Tokenizer
    template: ChatTemplate
    renderer: Renderer
    stop_ids: frozenset[int]
    """The tokens that end a turn, as the engine reads them from the directory; empty if nothing says so."""
    vocabulary: int | None
    """Rows of the embedding; None if the directory does not tell."""

    @classmethod
    def load(
        cls,
        directory: Path,
        *,
        tool_format: ToolFormat | None = None,
        formats: Iterable[ToolFormat] = tuple(FORMATS.values()),
    ) -> "ChatModel":
        tokenizer = Tokenizer.load(directory)
        template = ChatTemplate.load(directory, clock=lambda: TODAY)
        config = read_optional(directory / "config.json")
        config = {**config, **config.get("text_config", {})}
        size = config.get("vocab_size")
        return cls(
            tokenizer,
            template,
            Renderer(tokenizer, template, tool_format=tool_format, formats=formats),
            frozenset(stop_tokens(directory)),
            size if isinstance(size, int) else None,
        )

    def show(self, tokens: tuple[int, ...]) -> tuple[str, ...]:
        """Each token as text."""
        return tuple(self.tokenizer.bytes_of(t).decode(errors="replace") for t in tokens)


def content_key(directory: Path, *, tool_format: str | None = None) -> str:
    """A key that is the same for two directories if they turn conversations into the same tokens and read the same
    tool format."""
    config = read_optional(directory / "config.json")
    limits = [config.get("eos_token_id"), config.get("vocab_size")]
    digest = sha256(orjson.dumps([CHECKS, limits]))
    extra = (directory / "additional_chat_templates").glob("*.jinja")
    for path in (*(directory / name for name in _FILES), *sorted(extra)):
        if path.is_file():
            digest.update(path.name.encode() + b"\0" + sha256(path.read_bytes()).digest())
    if tool_format is not None:
        digest.update(b"tool_format\0" + tool_format.encode())
    return digest.hexdigest()[:32]
