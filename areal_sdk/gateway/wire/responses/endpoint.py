"""`/v1/responses`, and the responses that each session stores there."""

from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from aiohttp import web

from areal_sdk.gateway.errors import bad_request
from areal_sdk.gateway.sampling.completer import Completer
from areal_sdk.gateway.sessions.session import Session
from areal_sdk.gateway.wire.endpoint import Endpoint
from areal_sdk.gateway.wire.fields import Fields
from areal_sdk.gateway.wire.http import json_response
from areal_sdk.gateway.wire.responses.items import ResponseStore
from areal_sdk.gateway.wire.responses.reply import ResponsesReply
from areal_sdk.gateway.wire.responses.request import parse_count

Query = Mapping[str, str]


class ResponsesEndpoint(Endpoint):
    """Answers requests, and keeps the responses that they store until their session ends."""

    def __init__(
        self,
        completer: Completer,
        *,
        model: Callable[[Fields, Session], str],
        lenient: bool = False,
    ) -> None:
        self._model = model
        self._tokenizer = completer.tokenizer
        self._stores: WeakKeyDictionary[Session, ResponseStore] = WeakKeyDictionary()
        super().__init__(completer, self._read, lenient=lenient)

    def _read(self, fields: Fields, session: Session) -> ResponsesReply:
        return ResponsesReply(
            fields,
            session,
            model=self._model(fields, session),
            tokenizer=self._tokenizer,
            store=self.store(session),
        )

    async def count(self, body: Any, session: Session, *, num_bytes: int) -> dict[str, Any]:
        """The number of prompt tokens that a request would have. Nothing is sampled."""
        fields = Fields(body, lenient=self._lenient)
        asked = await self._completer.large.run(
            num_bytes, lambda: parse_count(fields, self.store(session), session.raw_inputs)
        )
        num_tokens = await self._completer.count(session, asked, num_bytes=num_bytes)
        return {"object": "response.input_tokens", "input_tokens": num_tokens}

    def store(self, session: Session) -> ResponseStore:
        return self._stores.setdefault(session, ResponseStore())

    def retrieve(self, session: Session, response_id: str, query: Query) -> web.Response:
        """The response, or with `stream=true` its events once more, after number `starting_after`."""
        stored = self.store(session).get(response_id)
        if query.get("stream", "false").lower() != "true":
            return json_response(stored.response)
        if not stored.events:
            raise bad_request(
                "Only a response made with background and stream can be streamed again.",
                param="stream",
            )
        last = _number(query, "starting_after", least=0, most=2**31)
        body = b"".join(stored.events[0 if last is None else last + 1 :])
        return web.Response(body=body, content_type="text/event-stream")

    def delete(self, session: Session, response_id: str, query: Query) -> web.Response:
        self.store(session).delete(response_id)
        return json_response({"id": response_id, "object": "response", "deleted": True})

    def cancel(self, session: Session, response_id: str, query: Query) -> web.Response:
        """Answer a request to cancel. A background response is finished when it gets its id, so cancelling changes
        nothing."""
        stored = self.store(session).get(response_id)
        if not stored.response["background"]:
            raise bad_request("Cannot cancel a response that is not running in the background.")
        return json_response(stored.response)

    def input_items(self, session: Session, response_id: str, query: Query) -> web.Response:
        """One page of the items that the response answered, by default the latest first."""
        items = self.store(session).get(response_id).input_items
        fields = Fields(dict(query))
        if fields.choice("order", ("asc", "desc")) != "asc":
            items = items[::-1]
        ids = [item["id"] for item in items]
        if (after := fields.text("after")) is not None:
            if after not in ids:
                raise bad_request(f"after is {after!r}, which is no item's id", param="after")
            items = items[ids.index(after) + 1 :]
        limit = _number(query, "limit", least=1, most=100) or 20
        page = items[:limit]
        return json_response(
            {
                "object": "list",
                "data": page,
                "first_id": page[0]["id"] if page else None,
                "last_id": page[-1]["id"] if page else None,
                "has_more": len(items) > limit,
            }
        )


def _number(query: Query, name: str, *, least: int, most: int) -> int | None:
    """A number in a query string; None if it is missing."""
    text = query.get(name)
    if text is None:
        return None
    value: Any = int(text) if text.isdecimal() and len(text) < 20 else text
    return Fields({name: value}).integer(name, least=least, most=most)
