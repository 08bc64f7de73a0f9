"""The harness of areal-sdk: a chat with the task's tools, in this process.

The harnesses of verifiers run a program for each episode, whose packages `uv` fetches. This one makes the same calls
without a program. It ends when the model answers without a call, or when a limit leaves no room for another answer.
"""

import json
from contextlib import AsyncExitStack

import httpx
from verifiers.v1 import Harness, HarnessConfig, ProgramResult
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp

__all__ = ["SessionHarness"]

_LIMITS = ("context_length_exceeded", "episode_limit_reached")
"""Signs of a refusal that ends the chat and not the episode: the task judges what there is."""


class SessionHarnessConfig(HarnessConfig):
    pass


class SessionHarness(Harness[SessionHarnessConfig]):
    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        system, prompt = self.resolve_prompt(data)
        messages = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [message_to_wire(message) for message in prompt or []]
        servers = {
            name: {"url": url, "timeout": self.config.tool_timeout}
            for name, url in mcp_urls.items()
        }
        async with AsyncExitStack() as stack:
            headers = {"Authorization": f"Bearer {secret}"}
            client = httpx.AsyncClient(base_url=endpoint, headers=headers, timeout=None)
            await stack.enter_async_context(client)
            tools = await connect_mcp({"mcpServers": servers}, stack)
            await _chat(client, ctx.model, messages, *tools)
        return ProgramResult(exit_code=0, stdout="", stderr="")


async def _chat(client, model, messages, tools, dispatch, servers):
    while True:
        asked = {"model": model, "messages": messages, **({"tools": tools} if tools else {})}
        reply = await client.post("chat/completions", json=asked)
        if reply.is_error:
            if any(sign in reply.text for sign in _LIMITS):
                return
            raise RuntimeError(
                f"the model's answer failed with {reply.status_code}: {reply.text[:500]}"
            )
        message = reply.json()["choices"][0]["message"]
        messages.append({name: value for name, value in message.items() if value is not None})
        if not (calls := message.get("tool_calls")):
            return
        for call in calls:
            content = await _called(call["function"], dispatch, servers)
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})


async def _called(function, dispatch, servers):
    """The answer to a call, also to one that the model got wrong."""
    name = function["name"]
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        return "error: the arguments are no JSON object"
    if name not in dispatch:
        return f"error: no tool {name!r}; there are {', '.join(dispatch) or 'none'}"
    return await call_mcp(servers, dispatch, name, arguments)
