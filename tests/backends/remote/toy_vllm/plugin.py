"""An engine plugin for servers that are not SGLang: a client, a launcher, an engine, a hook."""

import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal

import areal_sdk
from areal_sdk.backends.remote import (
    JSON,
    Attempt,
    Capabilities,
    Delta,
    HttpClient,
    RemoteEngine,
    RemoteSection,
    Scores,
    ServerCommand,
    ServerInfo,
    ServerLauncher,
    ServerLimits,
    SupervisionOptions,
)
from areal_sdk.types import FinishReason

SERVER = Path(__file__).with_name("server.py")


class ToyClient(HttpClient):
    """The routes of `server.py`."""

    kind = "toy"
    capabilities = Capabilities(interrupts=("retract", "abort", "drain"), transports=("disk",))

    async def probe(self, *, is_busy: bool = False) -> None:
        deadlines = self.deadlines
        timeout_s = deadlines.busy_probe_s if is_busy else deadlines.probe_s
        await self._post("/ping_sampler", {}, timeout_s=timeout_s)

    async def inspect(self, model: Path) -> ServerInfo:
        served = (await self._get("/v1/models"))["data"][0]
        return ServerInfo(dtype=served["dtype"], max_context=served["max_model_len"])

    def generate(self, attempt: Attempt) -> AsyncGenerator[Delta, None]:
        rest = replace(
            attempt.request,
            tokens=(*attempt.request.tokens, *attempt.sampled),
            max_new_tokens=attempt.request.max_new_tokens - len(attempt.sampled),
            request_id=attempt.request_id,
        )

        def read(event: JSON) -> Delta:
            reason = event["finish_reason"]
            return Delta(
                tuple(event["token_ids"]),
                tuple(event["logprobs"]),
                tuple(attempt.version_of(tag) for tag in event["weight_tags"]),
                tuple({int(t): p for t, p in top.items()} for top in event["top_logprobs"]),
                finish_reason=None if reason is None else FinishReason(reason),
                stop_matched=event["stop_reason"],
                num_cached=event["cached_tokens"],
            )

        return self._stream("/inference/v1/generate", asdict(rest), read=read)

    async def score(
        self, tokens: Sequence[int], candidates: Sequence[int], *, cache_key: str | None = None
    ) -> Scores:
        body = {"token_ids": list(tokens), "of": list(candidates)}
        answer = await self._post("/score", body)
        logprobs = dict(zip(candidates, answer["logprobs"], strict=True))
        return Scores(logprobs, num_cached=answer["cached_tokens"])

    async def abort_all(self) -> None:
        await self._post("/abort_requests", {})

    async def pause(self, mode: str) -> None:
        await self._post("/hold", {})

    async def resume(self) -> None:
        await self._post("/go_on", {})

    async def weight_label(self) -> str:
        return str((await self._get("/weights"))["tag"])

    async def set_label(self, label: str) -> None:
        await self._post("/weights/tag", {"tag": label})

    async def update_from_disk(self, directory: str, *, label: str, flush: bool) -> None:
        body = {"path": directory, "tag": label}
        await self._post("/weights/reload", body, timeout_s=self.deadlines.weights_s)


class ToyLauncher(ServerLauncher):
    def __init__(self, model_dir: Path, log_dir: Path, *, servers: int) -> None:
        super().__init__(log_dir, name="toy", count=servers)
        self._model_dir = model_dir

    def command(self, index: int, *, port: int) -> ServerCommand:
        return ServerCommand([sys.executable, str(SERVER), str(self._model_dir), str(port)])


class ToyEngine(RemoteEngine):
    client = ToyClient

    def __init__(
        self,
        *,
        model_dir: Path,
        log_dir: Path,
        servers: int = 1,
        interrupt: Literal["abort", "retract"] = "abort",
        request_wait_s: float = 120.0,
        max_restarts: int = 5,
    ) -> None:
        super().__init__(
            model_dir,
            log_dir=log_dir,
            launcher=ToyLauncher(model_dir, log_dir, servers=servers),
            settings=RemoteSection(interrupt=interrupt, request_wait_s=request_wait_s),
            limits=ServerLimits(
                supervision=SupervisionOptions(check_every_s=0.5, max_restarts=max_restarts)
            ),
        )


@areal_sdk.hookimpl
def register_engines(register: Callable[[str, object], None]) -> None:
    register("toy-vllm", ToyEngine)
