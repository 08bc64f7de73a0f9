"""`/v1/responses`: the endpoint, and what was stored of each session."""

from typing import Any
from weakref import WeakKeyDictionary

from areal_sdk.gateway.completion import Completer
from areal_sdk.gateway.errors import bad_request
from areal_sdk.gateway.session import Session
from areal_sdk.gateway.wire.endpoint import Endpoint
from areal_sdk.gateway.wire.responses import ResponsesReply
from areal_sdk.gateway.wire.responses_store import ResponseStore


class ResponsesEndpoint(Endpoint):
    """Answers requests, and keeps what they store for as long as their session lives."""

    def __init__(self, completer: Completer, *, model: str) -> None:
        self._model = model
        self._tokenizer = completer.tokenizer
        self._stores: WeakKeyDictionary[Session, ResponseStore] = WeakKeyDictionary()
        super().__init__(completer, self._read)

    def _read(self, body: Any, session: Session) -> ResponsesReply:
        store = self.store(session)
        return ResponsesReply(body, model=self._model, tokenizer=self._tokenizer, store=store)

    def count(self, body: Any, session: Session) -> dict[str, Any]:
        """Prompt tokens that a request would have, without a turn."""
        (asked,) = self._read(body, session).requests
        num_tokens = self._completer.count(session, asked)
        return {"object": "response.input_tokens", "input_tokens": num_tokens}

    def store(self, session: Session) -> ResponseStore:
        return self._stores.setdefault(session, ResponseStore())

    def retrieve(self, session: Session, response_id: str) -> dict[str, Any]:
        return self.store(session).get(response_id).response

    def delete(self, session: Session, response_id: str) -> dict[str, Any]:
        self.store(session).delete(response_id)
        return {"id": response_id, "object": "response", "deleted": True}

    def cancel(self, session: Session, response_id: str) -> dict[str, Any]:
        self.store(session).get(response_id)
        raise bad_request("Cannot cancel a response that is not running in the background.")

    def input_items(self, session: Session, response_id: str) -> dict[str, Any]:
        items = self.store(session).get(response_id).input_items[::-1]
        return {
            "object": "list",
            "data": items,
            "first_id": items[0]["id"] if items else None,
            "last_id": items[-1]["id"] if items else None,
            "has_more": False,
        }
