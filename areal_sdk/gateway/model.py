"""The model plane: what callers may ask of the model, in the wire formats of OpenAI and Anthropic."""

import time
from collections.abc import Callable
from typing import Any

from aiohttp import web

from areal_sdk.gateway.access import Access
from areal_sdk.gateway.errors import ApiError
from areal_sdk.gateway.processes.peers import Guard
from areal_sdk.gateway.sampling.completer import Completer
from areal_sdk.gateway.sessions.session import Session
from areal_sdk.gateway.wire.anthropic_reply import MessagesReply
from areal_sdk.gateway.wire.anthropic_request import parse as parse_messages_request
from areal_sdk.gateway.wire.chat import ChatReply
from areal_sdk.gateway.wire.completions import CompletionsReply
from areal_sdk.gateway.wire.endpoint import Endpoint
from areal_sdk.gateway.wire.fields import Fields
from areal_sdk.gateway.wire.http import (
    ErrorBody,
    Handler,
    json_response,
    not_found,
    parse_body,
    read_body,
)
from areal_sdk.gateway.wire.models import ServedModel, get_model, list_models
from areal_sdk.gateway.wire.responses.endpoint import Query, ResponsesEndpoint


class ModelPlane:
    """Samples, counts tokens, and names the model."""

    def __init__(
        self, completer: Completer, access: Access, *, model_name: str, lenient: bool
    ) -> None:
        """`lenient`: fields that would be refused are left out of the request, with a notice."""
        tokenizer = completer.tokenizer
        self._completer = completer
        self._access = access
        self._model_name = model_name
        self._lenient = lenient
        self._since = int(time.time())
        self._chat = Endpoint(
            completer,
            lambda asked, session: ChatReply(
                asked,
                session,
                known=session.history_of(self._policy(asked, session)).given,
                model=self._named(asked, session),
                tokenizer=tokenizer,
            ),
            lenient=lenient,
        )
        self._completions = Endpoint(
            completer,
            lambda asked, session: CompletionsReply(
                asked, session, model=self._named(asked, session), tokenizer=tokenizer
            ),
            lenient=lenient,
        )
        self._messages = Endpoint(
            completer,
            lambda asked, session: MessagesReply(asked, session, model=self._named(asked, session)),
            lenient=lenient,
        )
        self._responses = ResponsesEndpoint(completer, model=self._named, lenient=lenient)

    def add_routes(self, router: web.UrlDispatcher, prefix: str, *, guard: Guard) -> None:
        """Add the routes of both wire formats under `prefix`."""
        self._add_openai_routes(router, prefix, guard)
        self._add_anthropic_routes(router, f"{prefix}/messages", guard)
        # Anthropic's SDK adds /v1 itself: given the address that OpenAI's wants, it still works.
        self._add_anthropic_routes(router, f"{prefix}/v1/messages", guard)
        self._add_model_routes(router, f"{prefix}/v1", ApiError.anthropic_body, guard)

    def _add_openai_routes(self, router: web.UrlDispatcher, prefix: str, guard: Guard) -> None:
        router.add_post(f"{prefix}/chat/completions", guard(self._sample(self._chat)))
        router.add_post(f"{prefix}/completions", guard(self._sample(self._completions)))
        router.add_post(f"{prefix}/responses", guard(self._sample(self._responses)))
        router.add_post(f"{prefix}/responses/input_tokens", guard(self._count_input_tokens))
        # Nothing is compacted here; the path must not read as one stored response that takes other methods.
        router.add_post(f"{prefix}/responses/compact", guard(not_found))
        stored = f"{prefix}/responses/{{id}}"
        router.add_get(stored, guard(self._stored(self._responses.retrieve)))
        router.add_delete(stored, guard(self._stored(self._responses.delete)))
        router.add_post(f"{stored}/cancel", guard(self._stored(self._responses.cancel)))
        router.add_get(f"{stored}/input_items", guard(self._stored(self._responses.input_items)))
        self._add_model_routes(router, prefix, ApiError.openai_body, guard)
        router.add_post(f"{prefix}/embeddings", guard(self._no_embeddings))

    def _add_anthropic_routes(self, router: web.UrlDispatcher, path: str, guard: Guard) -> None:
        write_error = ApiError.anthropic_body
        router.add_post(path, guard(self._sample(self._messages), write_error))
        router.add_post(f"{path}/count_tokens", guard(self._count_tokens, write_error))
        router.add_route("*", f"{path}/{{rest:.*}}", guard(not_found, write_error))

    def _add_model_routes(
        self, router: web.UrlDispatcher, prefix: str, write_error: ErrorBody, guard: Guard
    ) -> None:
        router.add_get(f"{prefix}/models", guard(self._get_models, write_error))
        router.add_get(f"{prefix}/models/{{model:.+}}", guard(self._get_model, write_error))

    def _sample(self, endpoint: Endpoint) -> Handler:
        async def handler(request: web.Request) -> web.StreamResponse:
            caller = self._access.caller(request)
            raw = await read_body(request)  # before a session opens: half a request is no episode
            with self._access.sampling(caller) as session:
                return await endpoint.answer(request, raw, session)

        return handler

    def _stored(self, act: Callable[[Session, str, Query], web.Response]) -> Handler:
        """The handler of stored data, which belongs to one session alone. The admin has no session, and finds
        nothing."""

        async def handler(request: web.Request) -> web.StreamResponse:
            with self._access.reading(request) as session:
                return act(session, request.match_info["id"], request.query)

        return handler

    async def _count_input_tokens(self, request: web.Request) -> web.Response:
        self._access.caller(request)  # before its body is read
        raw = await read_body(request)
        with self._access.counting(request) as session:
            body = await self._parse(raw)
            counted = await self._responses.count(body, session, num_bytes=len(raw))
            return json_response(counted)

    async def _count_tokens(self, request: web.Request) -> web.Response:
        self._access.caller(request)
        raw = await read_body(request)
        with self._access.counting(request) as session:
            body = await self._parse(raw)
            fields = Fields(body, lenient=self._lenient)
            asked = await self._completer.large.run(
                len(raw), lambda: parse_messages_request(fields, max_new_tokens=None)
            )
            number = await self._completer.count(session, asked, num_bytes=len(raw))
            return json_response({"input_tokens": number})

    async def _parse(self, raw: bytes) -> Any:
        most = self._completer.most_values
        return await self._completer.large.run(len(raw), lambda: parse_body(raw, most=most))

    async def _no_embeddings(self, request: web.Request) -> web.Response:
        self._access.caller(request)
        # No 501: clients that do not know x-should-retry repeat a 5xx, and this one is for ever.
        raise ApiError(
            404,
            "A policy has no embeddings: send them to another endpoint.",
            code="no_embeddings",
            retry=False,
        )

    async def _get_models(self, request: web.Request) -> web.Response:
        self._access.caller(request)
        return list_models(request, self._models())

    async def _get_model(self, request: web.Request) -> web.Response:
        self._access.caller(request)
        return get_model(request, self._models())

    def _named(self, asked: Fields, session: Session) -> str:
        """The name of the model that answers a request."""
        return self._policy(asked, session) or self._model_name

    def _policy(self, asked: Fields, session: Session) -> str:
        return self._completer.names.policy_of(asked.text("model"), session.id)

    def _models(self) -> list[ServedModel]:
        names = self._completer.names.listed() or (self._model_name,)
        return [ServedModel(name, self._since, self._completer.max_context) for name in names]
