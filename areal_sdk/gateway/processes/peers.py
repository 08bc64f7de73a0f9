"""The other gateway processes, as one process uses them: it passes requests to owners, and sums counts over all."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import orjson
from aiohttp import web

from areal_sdk.gateway.access import key_of
from areal_sdk.gateway.accounts.accounts import Account, Accounts
from areal_sdk.gateway.errors import ApiError
from areal_sdk.gateway.processes.hop import Hop
from areal_sdk.gateway.processes.membership import Membership
from areal_sdk.gateway.processes.moving import Mover
from areal_sdk.gateway.wire.http import ErrorBody, Handler, parse_body, read_body


class NamedBy(StrEnum):
    """The part of a request that says which session it means."""

    CALLER = "caller"
    """The caller's key or the address. A bare key names no session: the process at which the
    request arrives answers it."""
    REPLY = "reply"
    """The caller as with `CALLER`, or, with a bare key, the id of a reply in the body."""
    PATH = "path"
    """The session's id in the path."""
    BODY = "body"
    """The id, in the body, of the session or group to open."""


class Guard(Protocol):
    """Wraps a route's handler: turns its errors into answers, and sends requests to the owners of their sessions."""

    def __call__(
        self, handler: Handler, write_error: ErrorBody = ..., *, named_by: NamedBy = ...
    ) -> Handler: ...


def is_from_peer(request: web.Request) -> bool:
    """Whether another process passed the request on: it came over the Unix socket."""
    transport = request.transport
    return transport is not None and not isinstance(transport.get_extra_info("sockname"), tuple)


class Peers:
    """Sends each request to the owner of its session."""

    def __init__(self, membership: Membership, accounts: Accounts) -> None:
        self._shard = membership.shard
        self._accounts = accounts
        self._mover = Mover()
        self._latest: WeakKeyDictionary[asyncio.Transport, int] = WeakKeyDictionary()
        """The owner of the latest request of each connection, if that owner is another process."""
        self._hops: Mapping[int, Hop] = {
            number: Hop(
                membership.socket_of(number), door=membership.door_of(number), mover=self._mover
            )
            for number in range(self._shard.size)
            if number != self._shard.number
        }

    def reaching_owner(self, handler: Handler, named_by: NamedBy) -> Handler:
        """`handler` for requests that this process owns, or that have no owner; other requests go to their owners."""
        find: Mapping[NamedBy, Callable[[web.Request], Awaitable[int | None]]] = {
            NamedBy.CALLER: self._by_caller,
            NamedBy.REPLY: self._by_reply,
            NamedBy.PATH: self._by_path,
            NamedBy.BODY: self._by_body,
        }
        owner_of = find[named_by]

        async def answer(request: web.Request) -> web.StreamResponse:
            if is_from_peer(request):
                return await handler(request)
            owner = await owner_of(request)
            is_second = self._is_second(request, owner)
            hop = None if owner is None else self._hops.get(owner)
            return await (
                handler(request) if hop is None else hop.pass_on(request, moves=is_second)
            )

        return answer

    def _is_second(self, request: web.Request, owner: int | None) -> bool:
        """Whether the latest request of this connection had the same owner, which is another process."""
        if (transport := request.transport) is None:
            return False
        if owner is None or owner not in self._hops:
            if self._latest:
                self._latest.pop(transport, None)
            return False
        is_second = self._latest.get(transport) == owner
        self._latest[transport] = owner
        return is_second

    async def ask_all(self, path: str, *, key: str = "") -> list[Any]:
        """The JSON answers of all other processes to a GET; a 503 while one of them is gone."""
        headers = f"Authorization: Bearer {key}\r\n" if key else ""
        asking = (hop.ask(path, headers=headers) for hop in self._hops.values())
        return [orjson.loads(body) for body in await asyncio.gather(*asking)]

    def close(self) -> None:
        self._mover.close()
        for hop in self._hops.values():
            hop.close()

    async def _by_caller(self, request: web.Request) -> int | None:
        slug, key = request.match_info.get("slug"), key_of(request)
        if slug is not None:
            if (owner := self._shard.of_slug(slug)) is not None:
                return owner
            return self._of_name(self._accounts.by_key(key), slug)
        if (owner := self._shard.of_key(key)) is not None:
            return owner
        if self._accounts.by_key(key) is not None:
            return None
        key, _, name = key.rpartition("/")
        return self._of_name(self._accounts.by_key(key), name)

    def _of_name(self, account: Account | None, name: str) -> int | None:
        return None if account is None else self._shard.of_session(f"{account.name}/{name}")

    async def _by_reply(self, request: web.Request) -> int | None:
        owner = await self._by_caller(request)
        is_bare = "slug" not in request.match_info and self._accounts.by_key(key_of(request))
        if owner is not None or not is_bare:
            return owner
        reply = await _text_in_body(request, "turn")
        return None if reply is None else self._shard.of_reply(reply)

    async def _by_path(self, request: web.Request) -> int | None:
        self._accounts.refresh()  # the owner of USER/NAME depends on whether USER is known
        return self._shard.of_session(request.match_info["id"])

    async def _by_body(self, request: web.Request) -> int | None:
        if self._accounts.by_key(key_of(request)) is not self._accounts.admin:
            return None  # it gets its 401 before its body is read
        raw = await read_body(request)
        body = _parsed(raw)
        name = body.get("id")
        if not isinstance(name, str) or not name:
            return None
        is_group = body.get("group_size") is not None
        return self._shard.of_group(name) if is_group else self._shard.of_session(name)


async def _text_in_body(request: web.Request, field: str) -> str | None:
    value = _parsed(await read_body(request)).get(field)
    return value if isinstance(value, str) else None


def _parsed(raw: bytes) -> Mapping[str, Any]:
    """A body as JSON. Empty if it is no JSON object: the handler then says what is wrong."""
    try:
        body = parse_body(raw) if raw else {}
    except ApiError:
        return {}
    return body if isinstance(body, dict) else {}
