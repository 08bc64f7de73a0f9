"""The part of the Model Context Protocol that calls tools: JSON-RPC messages, tools, results."""

from collections.abc import Mapping
from typing import Any, Protocol

from areal_sdk import EpisodeError

JSON = dict[str, Any]

VERSION = "2025-06-18"
"""The revision offered to servers. A server may answer with an older one: all of them have what is used here."""

INVALID_PARAMS, METHOD_NOT_FOUND = -32602, -32601


class CallRefusedError(Exception):
    """The server refused a call because of its content, such as arguments that do not fit the schema."""


class Transport(Protocol):
    """Carries requests to one server. Every failure to get an answer is an infrastructure fault."""

    @property
    def pid(self) -> int | None: ...

    async def start(self) -> None: ...

    async def request(self, method: str, params: JSON, *, timeout_s: float) -> JSON:
        """The result. `CallRefusedError`: the server says that the parameters are wrong."""

    async def notify(self, method: str) -> None: ...

    async def aclose(self) -> None: ...


def fault(server: str, what: str) -> EpisodeError:
    """The error to raise for a fault of the server. The episode is tried again, and never counts as a zero."""
    return EpisodeError.infrastructure(f"MCP server {server!r}: {what}")


def request_of(number: int, method: str, params: JSON) -> JSON:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


def notification_of(method: str) -> JSON:
    return {"jsonrpc": "2.0", "method": method}


def reply_to(message: Mapping[str, Any]) -> JSON | None:
    """The answer to a request of the server: a ping is answered, all else is not offered here."""
    if "method" not in message or "id" not in message:
        return None
    if message["method"] == "ping":
        return {"jsonrpc": "2.0", "id": message["id"], "result": {}}
    refusal = {"code": METHOD_NOT_FOUND, "message": f"no {message['method']} here"}
    return {"jsonrpc": "2.0", "id": message["id"], "error": refusal}


def result_of(message: Mapping[str, Any], *, server: str, method: str) -> JSON:
    """The result in an answer, or the error that it is."""
    error = message.get("error")
    if error is None:
        result = message.get("result")
        if not isinstance(result, dict):
            raise fault(
                server, f"{method} was answered with {str(message)[:200]}, without a result"
            )
        return result
    code, text = error.get("code"), str(error.get("message"))
    if method == "tools/call" and code == INVALID_PARAMS:
        raise CallRefusedError(text)
    raise fault(server, f"{method} failed with {code}: {text[:500]}")


def tool_of(item: Mapping[str, Any]) -> JSON:
    """A tool of a server, as models are told of functions."""
    function = {
        "name": item["name"],
        "description": item.get("description") or item.get("title") or "",
        "parameters": item.get("inputSchema") or {"type": "object", "properties": {}},
    }
    return {"type": "function", "function": function}


def text_of(result: Mapping[str, Any]) -> str:
    """A call's result as text: models read text. A picture or a sound is named, not shown.

    >>> text_of({"content": [{"type": "text", "text": "4"}, {"type": "image", "data": "..."}]})
    '4\\n[image]'
    >>> text_of({"content": [{"type": "text", "text": "no such file"}], "isError": True})
    'error: no such file'
    """
    parts = [_part(item) for item in result.get("content") or []]
    text = "\n".join(parts)
    return f"error: {text}" if result.get("isError") else text


def _part(item: Mapping[str, Any]) -> str:
    if item.get("type") == "text":
        return str(item.get("text", ""))
    resource = item.get("resource")
    if isinstance(resource, dict) and "text" in resource:
        return str(resource["text"])
    return f"[{item.get('type', 'unknown')}]"
