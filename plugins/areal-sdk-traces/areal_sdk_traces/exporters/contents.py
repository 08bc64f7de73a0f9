"""The content of a message as a format writes it: its text, or its parts. Formats differ in their images."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from areal_sdk_traces.conversation import JSON
from areal_sdk_traces.messages import Lost

Image = Callable[[str], JSON | None]
"""The part of an image at an address; None if the format has no place for it."""


def content_of(content: object, image: Image, lost: Lost) -> str | list[JSON]:
    """The content, and a `lost` line for each part that the format has no place for."""
    if not isinstance(content, Sequence) or isinstance(content, str):
        return str(content or "")
    return [part for given in content if (part := _part(given, image, lost))]


def _part(part: Any, image: Image, lost: Lost) -> JSON | None:
    if isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    given = part.get("image_url") if isinstance(part, Mapping) else None
    url = given.get("url") if isinstance(given, Mapping) else given
    if isinstance(url, str) and (found := image(url)):
        return found
    lost(f"a part of type {part.get('type') if isinstance(part, Mapping) else part!r}")
    return None
