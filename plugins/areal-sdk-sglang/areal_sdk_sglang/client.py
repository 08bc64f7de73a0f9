"""One SGLang server: its endpoints, as the methods of a `ServerClient`."""

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

from areal_sdk.backends.remote import (
    JSON,
    Attempt,
    Capabilities,
    Delta,
    HttpClient,
    RequestRefusedError,
    Scores,
    ServerClient,
    ServerFailedError,
    WeightLayout,
)
from areal_sdk.engine import GenerateRequest
from areal_sdk.errors import EngineError, UnsupportedSchemaError
from areal_sdk_sglang.probe import SGLangServerInfo, check_logprob_convention, read_info
from areal_sdk_sglang.wire import EventReader, generate_body

_MEMORY = ("weights", "kv_cache")
_IDLE_CHECK_S = 0.02
"""Pause between two tries to release memory: SGLang refuses while it runs a request, and does not tell when it is
idle."""

_BAD_GRAMMAR = re.compile(
    r"(?:Failed to compile json grammar: (?:\[[\d:]+\] \S+: )?|(?=Grammar preprocessing timed out))"
    r"([^\n]*)"
)
"""SGLang's words for a schema that it cannot compile, without the line of its compiler's source."""


class SGLangClient(HttpClient):
    """The endpoints of one server, or of an sglang-router, that the pool uses."""

    kind = "SGLang"
    capabilities = Capabilities(
        interrupts=("retract", "abort", "drain", "in_place"),
        transports=("disk", "tensor", "distributed"),
        reports_checksums=True,
        lends_memory=True,
        stands_behind_router=True,
    )
    layout = WeightLayout(
        fused={
            "qkv_proj": ("q_proj", "k_proj", "v_proj"),
            "gate_up_proj": ("gate_proj", "up_proj"),
        },
        vocabulary_multiple=64,
    )
    reserved_tokens = 6

    _is_incremental = True
    """Whether the server streams deltas instead of everything so far; known once inspected."""

    # sampling

    def generate(self, attempt: Attempt) -> AsyncGenerator[Delta, None]:
        request = attempt.request
        reader = EventReader(
            attempt.version_of,
            submitted_version=attempt.submitted_version,
            is_incremental=self._is_incremental,
            wants_top_logprobs=request.num_top_logprobs > 0,
            keeps_kv=attempt.cache_key is not None,
        )
        body = generate_body(
            request,
            sampled=attempt.sampled,
            request_id=attempt.request_id,
            cache_key=attempt.cache_key,
        )
        return self._stream("/generate", body, read=reader.read)

    def explain_refusal(self, request: GenerateRequest, error: RequestRefusedError) -> EngineError:
        if request.json_schema is not None and (found := _BAD_GRAMMAR.search(str(error))):
            return UnsupportedSchemaError(found[1])
        return EngineError(str(error))

    async def abort_all(self) -> None:
        await self._post("/abort_request", {"abort_all": True})

    async def score(
        self, tokens: Sequence[int], candidates: Sequence[int], *, cache_key: str | None = None
    ) -> Scores:
        meta, logprobs = await self.next_token_logprobs(tokens, candidates, cache_key=cache_key)
        return Scores(logprobs, num_cached=int(meta.get("cached_tokens") or 0))

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
            raise ServerFailedError(f"{self.address} aborted a probe: {finish.get('message')}")
        listed = (meta.get("output_token_ids_logprobs") or [[]])[0] or []
        return meta, {int(token): float(logprob) for logprob, token, _ in listed}

    async def probe(self, *, is_busy: bool = False) -> None:
        """Have the scheduler sample a token. The HTTP process may answer although the scheduler hangs."""
        body = {"input_ids": [0], "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
        deadlines = self.deadlines
        timeout_s = deadlines.busy_probe_s if is_busy else deadlines.probe_s
        await self._post("/generate", body, timeout_s=timeout_s)

    # information

    async def inspect(self, model: Path) -> SGLangServerInfo:
        info = read_info(await self.server_info(), self.address, model=model)
        await check_logprob_convention(self.next_token_logprobs, self.address)
        self._is_incremental = info.is_incremental
        return info

    async def server_info(self) -> JSON:
        return await self._get("/server_info")

    async def loads(self) -> JSON:
        """The load of the scheduler."""
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
        """Begin an update. If an earlier push failed in its middle, its session is still open, and is ended first."""
        try:
            await self._weights("/begin_weight_update", {})
        except RequestRefusedError:
            with contextlib.suppress(RequestRefusedError):
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

    async def release_memory(self) -> None:
        await self._until_idle()
        await self._weights("/release_memory_occupation", {"tags": list(_MEMORY)})

    async def resume_memory(self) -> None:
        await self._weights("/resume_memory_occupation", {"tags": list(_MEMORY)})

    async def _until_idle(self) -> None:
        """SGLang refuses to flush while a request has not left the scheduler, aborted or not."""
        ends_at = time.monotonic() + self.deadlines.control_s
        while True:
            try:
                await self._post("/flush_cache", {})
            except RequestRefusedError:
                if time.monotonic() > ends_at:
                    raise
                await asyncio.sleep(_IDLE_CHECK_S)
            else:
                return

    # of a router

    async def workers(self) -> dict[str, str]:
        """Ids of the servers registered with this router, by address."""
        listed = (await self._get("/workers"))["workers"]
        return {str(worker["url"]).rstrip("/"): str(worker["id"]) for worker in listed}

    async def add_worker(self, address: str) -> None:
        """Queued: it is registered once it has answered the router."""
        await self._post("/workers", {"url": address})

    async def remove_worker(self, worker_id: str) -> None:
        await self._call("DELETE", f"/workers/{worker_id}", None, self.deadlines.control_s)

    def speak_for(self, clients: Sequence[ServerClient]) -> None:
        kinds = {client._is_incremental for client in clients if isinstance(client, SGLangClient)}
        if len(kinds) > 1:
            raise EngineError(
                "behind a router either all servers stream incrementally or none: start all with "
                "--incremental-streaming-output"
            )
        (self._is_incremental,) = kinds

    async def _weights(self, path: str, body: JSON) -> None:
        answer = await self._post(path, body, timeout_s=self.deadlines.weights_s)
        if answer.get("success") is False:
            raise RequestRefusedError(f"{self.address}{path}: {answer.get('message')}")


def _labelled(label: str | None) -> JSON:
    return {} if label is None else {"weight_version": label}
