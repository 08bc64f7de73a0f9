"""One SGLang server over HTTP. Every call has a deadline and fails with an `EngineError`.

`ServerFault` means the server failed, so another one may do better; `RequestRefused` means the
server is well and said no.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from areal_sdk.errors import EngineError

JSON = dict[str, Any]

_NUM_ERROR_CHARACTERS = 300
_SUCCESS = (200, 202)
"""202: a router will do it soon."""


class ServerFault(EngineError):
    """The server is gone, hangs, or broke: whatever it was asked may be asked elsewhere."""


class RequestRefused(EngineError):
    """The server answered, and the answer was no."""


@dataclass(frozen=True, slots=True)
class Deadlines:
    connect_s: float = 5.0
    token_s: float = 300.0
    """Between two tokens of a request, queueing and a swap of weights included."""
    control_s: float = 20.0
    """Of a small control call: pause, continue, version, model information."""
    weights_s: float = 300.0
    """Of a call that moves weights."""
    probe_s: float = 10.0
    """Of the one-token request that shows an idle server to be alive."""
    busy_probe_s: float = 60.0
    """The same where requests run: a long prefill lets nothing else through."""


class SGLangClient:
    """The endpoints of one server that we use, and nothing else of it."""

    def __init__(
        self,
        address: str,
        session: aiohttp.ClientSession,
        *,
        deadlines: Deadlines | None = None,
        api_key: str | None = None,
    ) -> None:
        self.address = address.rstrip("/")
        self.deadlines = deadlines or Deadlines()
        self._session = session
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._open_streams: set[aiohttp.ClientResponse] = set()

    def __repr__(self) -> str:
        return f"SGLangClient({self.address!r})"

    # generation

    async def generate(self, body: JSON) -> AsyncGenerator[JSON, None]:
        """The events of one streamed request, up to the one with the finish reason.

        Closing it early makes the server abort the request.
        """
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=self.deadlines.connect_s, sock_read=self.deadlines.token_s
        )
        last: JSON | None = None
        try:
            async with self._session.post(
                f"{self.address}/generate",
                data=orjson.dumps(body),
                headers={"Content-Type": "application/json", **self._headers},
                timeout=timeout,
            ) as response:
                if response.status != 200:
                    await self._raise_refusal("/generate", response)
                self._open_streams.add(response)
                try:
                    async for event in _events(response.content):
                        if _is_final(event):
                            last = event  # read on to the end, so that the connection is reused
                        else:
                            yield event
                finally:
                    self._open_streams.discard(response)
                    if last is None:
                        response.close()  # not released: the server sees us leave and aborts
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            if last is None:
                raise self._fault("/generate", exc) from exc
        if last is None:
            raise ServerFault(f"{self.address} closed the stream of a request in the middle")
        yield last

    def abandon(self) -> None:
        """Close every open stream: their readers see a fault at once, not after a deadline."""
        for response in tuple(self._open_streams):
            response.close()

    async def abort_all(self) -> None:
        await self._post("/abort_request", {"abort_all": True})

    async def next_token_logprobs(
        self,
        tokens: Sequence[int],
        candidates: Sequence[int],
        *,
        temperature: float = 1.0,
        cache_key: str | None = None,
        timeout_s: float | None = None,
    ) -> tuple[JSON, dict[int, float]]:
        """One token sampled after `tokens`: its `meta_info`, and the logprobs of `candidates`."""
        body: JSON = {
            "input_ids": list(tokens),
            "sampling_params": {
                "max_new_tokens": 1,
                "temperature": temperature,
                "ignore_eos": True,
            },
            "return_logprob": True,
            "token_ids_logprob": list(candidates),
        }
        if cache_key is not None:
            body["extra_key"] = cache_key
        answer = await self._post(
            "/generate", body, timeout_s=timeout_s or self.deadlines.control_s
        )
        meta: JSON = answer["meta_info"]
        finish = meta.get("finish_reason") or {}
        if finish.get("type") == "abort":
            raise ServerFault(f"{self.address} aborted a probe: {finish.get('message')}")
        listed = (meta.get("output_token_ids_logprobs") or [[]])[0] or []
        return meta, {int(token): float(logprob) for logprob, token, _ in listed}

    async def probe(self, *, is_busy: bool = False) -> None:
        """A token from the scheduler: alive is not what the HTTP process says about itself."""
        body = {"input_ids": [0], "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
        deadlines = self.deadlines
        timeout_s = deadlines.busy_probe_s if is_busy else deadlines.probe_s
        await self._post("/generate", body, timeout_s=timeout_s)

    # information

    async def server_info(self) -> JSON:
        return await self._get("/server_info")

    async def loads(self) -> JSON:
        """How busy the scheduler is."""
        answer = await self._get("/v1/loads")
        load: JSON = answer["loads"][0]
        return load

    async def weight_label(self) -> str:
        return str((await self._get("/model_info"))["weight_version"])

    async def checksums(self) -> dict[str, str]:
        """A hash of each parameter as the server holds it."""
        answer = await self._post(
            "/weights_checker", {"action": "checksum"}, timeout_s=self.deadlines.weights_s
        )
        merged: dict[str, str] = {}
        for rank, entry in enumerate(answer.get("ranks") or []):
            prefix = f"rank{rank}." if len(answer["ranks"]) > 1 else ""
            merged |= {prefix + name: str(value) for name, value in entry["checksums"].items()}
        return merged

    # weights

    async def pause(self, mode: str) -> None:
        await self._post("/pause_generation", {"mode": mode})

    async def resume(self) -> None:
        await self._post("/continue_generation", {})

    async def flush_cache(self) -> None:
        await self._post("/flush_cache", {})

    async def set_label(self, label: str) -> None:
        """Name the weights the server holds; requests in flight go on."""
        body = {"new_version": label, "abort_all_requests": False}
        await self._post("/update_weight_version", body)

    async def update_from_disk(self, directory: str, *, label: str, flush: bool) -> None:
        await self._weights(
            "/update_weights_from_disk",
            {"model_path": directory, "weight_version": label, "flush_cache": flush},
        )

    async def begin_update(self) -> None:
        """A push that failed in its middle left its session open: that one ends first."""
        try:
            await self._weights("/begin_weight_update", {})
        except RequestRefused:
            with contextlib.suppress(RequestRefused):
                await self.end_update()
            await self._weights("/begin_weight_update", {})

    async def end_update(self) -> None:
        await self._weights("/end_weight_update", {})

    async def update_from_tensor(
        self, payloads: Sequence[str], *, label: str | None, flush: bool
    ) -> None:
        body: JSON = {
            "serialized_named_tensors": list(payloads),
            "load_format": "flattened_bucket",
            "flush_cache": flush,
        }
        await self._weights("/update_weights_from_tensor", body | _labelled(label))

    async def join_group(
        self, *, host: str, port: int, world_size: int, group: str, backend: str
    ) -> None:
        await self._weights(
            "/init_weights_update_group",
            {
                "master_address": host,
                "master_port": port,
                "rank_offset": 1,
                "world_size": world_size,
                "group_name": group,
                "backend": backend,
            },
        )

    async def update_from_group(
        self,
        parameters: Sequence[tuple[str, str, Sequence[int]]],
        *,
        group: str,
        label: str | None,
        flush: bool,
    ) -> None:
        """Receive one broadcast bucket of `(name, dtype, shape)`s."""
        body: JSON = {
            "names": [name for name, _, _ in parameters],
            "dtypes": [dtype for _, dtype, _ in parameters],
            "shapes": [list(shape) for _, _, shape in parameters],
            "group_name": group,
            "load_format": "flattened_bucket",
            "flush_cache": flush,
        }
        await self._weights("/update_weights_from_distributed", body | _labelled(label))

    # memory

    async def release_memory(self, tags: Sequence[str]) -> None:
        await self._weights("/release_memory_occupation", {"tags": list(tags)})

    async def resume_memory(self, tags: Sequence[str]) -> None:
        await self._weights("/resume_memory_occupation", {"tags": list(tags)})

    # of a router

    async def workers(self) -> dict[str, str]:
        """By address: the ids of the servers registered with this router."""
        listed = (await self._get("/workers"))["workers"]
        return {str(worker["url"]).rstrip("/"): str(worker["id"]) for worker in listed}

    async def add_worker(self, address: str) -> None:
        """Queued: it is registered once it has answered the router."""
        await self._post("/workers", {"url": address})

    async def remove_worker(self, worker_id: str) -> None:
        await self._call("DELETE", f"/workers/{worker_id}", None, self.deadlines.control_s)

    # inside

    async def _weights(self, path: str, body: JSON) -> None:
        answer = await self._post(path, body, timeout_s=self.deadlines.weights_s)
        if answer.get("success") is False:
            raise RequestRefused(f"{self.address}{path}: {answer.get('message')}")

    async def _get(self, path: str) -> JSON:
        return await self._call("GET", path, None, self.deadlines.control_s)

    async def _post(self, path: str, body: JSON, *, timeout_s: float | None = None) -> JSON:
        return await self._call("POST", path, body, timeout_s or self.deadlines.control_s)

    async def _call(self, method: str, path: str, body: JSON | None, timeout_s: float) -> JSON:
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=self.deadlines.connect_s)
        try:
            async with self._session.request(
                method,
                f"{self.address}{path}",
                data=None if body is None else orjson.dumps(body),
                headers={"Content-Type": "application/json", **self._headers},
                timeout=timeout,
            ) as response:
                if response.status not in _SUCCESS:
                    await self._raise_refusal(path, response)
                raw = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            raise self._fault(path, exc, timeout_s) from exc
        with contextlib.suppress(orjson.JSONDecodeError):
            parsed = orjson.loads(raw)
            return parsed if isinstance(parsed, dict) else {"value": parsed}
        return {}  # some control endpoints answer in plain text

    async def _raise_refusal(self, path: str, response: aiohttp.ClientResponse) -> None:
        text = (await response.text())[:_NUM_ERROR_CHARACTERS]
        what = f"{self.address}{path} answered {response.status}: {text.strip()}"
        raise (ServerFault if response.status >= 500 else RequestRefused)(what)

    def _fault(self, path: str, error: Exception, timeout_s: float | None = None) -> ServerFault:
        if isinstance(error, TimeoutError):
            seconds = timeout_s or self.deadlines.token_s
            return ServerFault(f"{self.address}{path} said nothing for {seconds:g} s")
        return ServerFault(f"{self.address}{path}: {type(error).__name__}: {error}")


def _labelled(label: str | None) -> JSON:
    return {} if label is None else {"weight_version": label}


def _is_final(event: JSON) -> bool:
    return "error" in event or event["meta_info"]["finish_reason"] is not None


async def _events(content: aiohttp.StreamReader) -> AsyncGenerator[JSON, None]:
    """Parsed server-sent events, without the closing `[DONE]`."""
    pending = bytearray()
    async for piece in content.iter_any():
        pending += piece
        while (end := pending.find(b"\n\n")) >= 0:
            event = bytes(pending[:end])
            del pending[: end + 2]
            if not event.startswith(b"data: ") or event == b"data: [DONE]":
                continue
            try:
                yield orjson.loads(event[6:])
            except orjson.JSONDecodeError as exc:
                raise ServerFault(f"not an event of SGLang: {event[:80]!r}") from exc


async def wait_until_ready(
    client: SGLangClient, *, timeout_s: float, is_running: Callable[[], bool] = lambda: True
) -> None:
    """Return once the server samples tokens; `ServerFault` when it dies or is not in time."""
    last: EngineError | None = None
    ends_at = time.monotonic() + timeout_s
    while time.monotonic() < ends_at:
        if not is_running():
            raise ServerFault(f"the SGLang server of {client.address} died at start")
        try:
            await client.probe()
        except EngineError as exc:
            last = exc
        else:
            return
        await asyncio.sleep(0.25)
    raise ServerFault(f"{client.address} was not ready within {timeout_s:g} s; last: {last}")
