"""The responses that a session stored, for `previous_response_id` and for retrieval."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from areal_sdk.gateway.errors import ApiError
from areal_sdk.gateway.wire.items import Item, new_id
from areal_sdk.types import Message

_KEPT = 1000

_CURE = (
    "Responses are stored in their session, and a key alone speaks in a new one at each request: "
    "name a session, by the key KEY/NAME or the address /s/NAME/v1."
)


@dataclass(frozen=True, slots=True)
class StoredResponse:
    response: dict[str, Any]
    input_items: list[Item]
    conversation: tuple[Message, ...]
    """Everything said up to and including the response, instructions left out."""
    events: tuple[bytes, ...] = ()
    """Its stream, if it was made in the background: event i has sequence number i."""


class ResponseStore:
    """One session's responses, the latest thousand."""

    def __init__(self) -> None:
        self._responses: OrderedDict[str, StoredResponse] = OrderedDict()
        self._items: dict[str, Item] = {}

    def add(self, stored: StoredResponse) -> None:
        self._responses[stored.response["id"]] = stored
        self._items.update((item["id"], item) for item in stored.response["output"])
        if len(self._responses) > _KEPT:
            self.delete(next(iter(self._responses)))

    def get(self, response_id: str) -> StoredResponse:
        stored = self._responses.get(response_id)
        if stored is None:
            raise ApiError(
                404,
                f"Response with id '{response_id}' not found. {_CURE}",
                param="id",
                code="response_not_found",
            )
        return stored

    def previous(self, response_id: str) -> StoredResponse:
        """The response a request continues; a 400 that names the field if it is not here."""
        if response_id not in self._responses:
            raise ApiError(
                400,
                f"Previous response with id '{response_id}' not found. {_CURE}",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        return self._responses[response_id]

    def delete(self, response_id: str) -> None:
        stored = self.get(response_id)
        del self._responses[response_id]
        for item in stored.response["output"]:
            self._items.pop(item["id"], None)

    def item(self, item_id: str) -> Item | None:
        return self._items.get(item_id)


def with_ids(items: list[Any]) -> list[Item]:
    """Input items as they are listed: each has an id, a type and a status."""
    listed = []
    for item in items:
        kind = item.get("type") or "message"
        prefix = {
            "message": "msg",
            "reasoning": "rs",
            "function_call": "fc",
            "custom_tool_call": "ctc",
        }.get(kind, "item")
        whole = {"id": new_id(prefix), "status": "completed", **item, "type": kind}
        if isinstance(item.get("content"), str):
            part = "output_text" if item.get("role") == "assistant" else "input_text"
            whole["content"] = [{"type": part, "text": item["content"]}]
            if part == "output_text":
                whole["content"][0]["annotations"] = []
        listed.append(whole)
    return listed
