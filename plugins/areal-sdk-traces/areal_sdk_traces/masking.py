"""Personal data in conversations, masked text by text before anything is written."""

import importlib
import importlib.util
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import orjson

from areal_sdk import ConfigError, Message
from areal_sdk_traces.conversation import Conversation, arguments_of

Mask = Callable[[str], str]
"""The hook: a text without its personal data. JSON in arguments of calls is masked value by value."""

_PATTERNS = (
    # It begins where a run of letters begins, so that a long run without an @ is read once.
    (re.compile(r"(?<![\w.+-])[\w.+-]++@[\w-]+(?:\.[\w-]+)+"), "email"),
    (
        re.compile(
            r"\b(?:sk|pk|rk|gh[opusr]|github_pat|xox[abp]|glpat)[-_][\w-]{12,}|\b(?:hf|npm)_[A-Za-z0-9]{30,}"
            r"|\bAKIA[0-9A-Z]{16}\b|\bAIza[\w-]{30,}"
            r"|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]+|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----",
            re.DOTALL,
        ),
        "key",
    ),
    # A plus or separators are required: digits alone may be a time, an amount or an id of a tool.
    (re.compile(r"\+\d[\d ().-]{7,16}\d\b|\(?\b\d{3}\)?[ .-]\d{3}[ .-]\d{4}\b"), "phone"),
)


def mask_common(text: str) -> str:
    """The text with placeholders for e-mail addresses, phone numbers and keys.

    >>> mask_common("ann@example.org, +49 30 1234567, sk-proj-0123456789abcdef, order 1732617600")
    '[email], [phone], [key], order 1732617600'
    """
    return _Common()(text)


class _Common:
    """`mask_common` for all texts of a conversation. The second address is `[email 2]`: two people stay two."""

    def __init__(self) -> None:
        self._numbers: dict[str, dict[str, int]] = {}

    def __call__(self, text: str) -> str:
        for pattern, kind in _PATTERNS:
            text = pattern.sub(partial(self._placeholder, kind), text)
        return text

    def _placeholder(self, kind: str, found: re.Match[str]) -> str:
        known = self._numbers.setdefault(kind, {})
        number = known.setdefault(found[0], len(known) + 1)
        return f"[{kind}]" if number == 1 else f"[{kind} {number}]"


def load_mask(name: str) -> Mask | None:
    """The masker of `--mask`: `common`, `none`, `FILE.py:FUNCTION` or `MODULE:FUNCTION`."""
    if name in ("common", "none"):
        return mask_common if name == "common" else None
    return cast(Mask, load_function(name, "--mask", "common, none"))


def load_function(name: str, option: str, others: str) -> Any:
    """The function that an option names. ConfigError says what else the option takes."""
    place, _, function = name.rpartition(":")
    try:
        if place.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(place).stem, place)
            assert spec is not None
            assert spec.loader is not None, "a .py file has a loader"
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(place)
        return getattr(module, function)
    except (ImportError, OSError, AttributeError, ValueError) as exc:
        raise ConfigError(
            f"{option} {name}: {exc}; give {others}, FILE.py:FUNCTION or MODULE:FUNCTION"
        ) from None


def masked(conversation: Conversation, mask: Mask) -> tuple[Conversation, int]:
    """The conversation with every text masked, and how many texts changed."""
    num_changed = 0
    if mask is mask_common:
        mask = _Common()

    def hide(text: str) -> str:
        nonlocal num_changed
        try:
            hidden = mask(text)
        except Exception as exc:
            raise ConfigError(f"the masker failed: {type(exc).__name__}: {exc}") from exc
        if not isinstance(hidden, str):
            raise ConfigError(f"the masker returned {type(hidden).__name__}: return a text")
        num_changed += hidden != text
        return hidden

    messages = tuple(_message(message, hide) for message in conversation.messages)
    user = hide(conversation.user)
    tags, comments = (tuple(map(hide, said)) for said in (conversation.tags, conversation.comments))
    hidden = replace(conversation, messages=messages, user=user, tags=tags, comments=comments)
    return hidden, num_changed


def _message(message: Message, hide: Mask) -> Message:
    kept = {
        name: hide(value) if name in ("content", "reasoning_content") and value else value
        for name, value in message.items()
    }
    if message.get("tool_calls"):
        kept["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": _arguments(call, hide)}}
            for call in message["tool_calls"]
        ]
    return kept


def _arguments(call: dict[str, Any], hide: Mask) -> str:
    text = str(call["function"]["arguments"])
    value = arguments_of(text)
    if isinstance(value, str):
        return hide(text)
    hidden = _value(value, hide)
    return text if hidden == value else orjson.dumps(hidden).decode()


def _value(value: Any, hide: Mask) -> Any:
    if isinstance(value, str):
        return hide(value)
    if isinstance(value, list):
        return [_value(one, hide) for one in value]
    if isinstance(value, dict):
        return {hide(name): _value(one, hide) for name, one in value.items()}
    return value
