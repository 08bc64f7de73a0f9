"""The engine's process: takes requests, steps the core, sends the sampled tokens."""

import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import torch

from areal_sdk.backends.local.core import EngineCore, SampledToken
from areal_sdk.backends.local.forward.checkpoint import Weights, open_weights
from areal_sdk.backends.local.protocol import LocalOptions, decode_generate, encode_chunk
from areal_sdk.backends.local.push import Received
from areal_sdk.backends.local.sequence import Finish, Sequence
from areal_sdk.engine import GenerateChunk
from areal_sdk.errors import EngineError
from areal_sdk.process import JSON, Channel, Request
from areal_sdk.process.network.guests import GuestDoor
from areal_sdk.types import FinishReason

HEARTBEAT_S = 5.0
"""Seconds between signs of life to a stream that waits. A stream that stays silent means that the worker is stuck."""

FOR_GUESTS = ("generate", "abort")
"""The requests that other processes than the main one may send: rollout nodes."""


def main(channel: Channel, args: Mapping[str, JSON]) -> None:
    """Entry of the process; `args` as `LocalEngine` sends them."""
    options = LocalOptions.model_validate(args["options"])
    torch.set_num_threads(options.threads)
    core = EngineCore(Path(args["model_dir"]), options)
    channel.ready(
        {
            "max_context": core.max_context,
            "vocab_size": core.architecture.vocab_size,
            "stop_tokens": core.stop_tokens,
            "device": str(core.device),
            "dtype": str(core.dtype).removeprefix("torch."),
        }
    )
    Worker(channel, core).run()


@dataclass(slots=True, eq=False)
class _Answer:
    """A request that is being answered, and the part of the answer that is not sent yet."""

    request: Request
    sequence: Sequence
    request_id: str
    is_streamed: bool
    sent_at: float
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    top_logprobs: list[dict[int, float]] = field(default_factory=list)

    def add(self, sampled: SampledToken) -> None:
        self.tokens.append(sampled.token)
        self.logprobs.append(sampled.logprob)
        self.versions.append(sampled.version)
        if self.sequence.row.num_top_logprobs:
            self.top_logprobs.append(sampled.top_logprobs)

    def send(self, finish: Finish | None = None) -> None:
        if finish is None:
            self.request.emit(encode_chunk(self._take(None)))
            self.sent_at = time.monotonic()
        else:
            self.request.finish(encode_chunk(self._take(finish)))

    def _take(self, finish: Finish | None) -> GenerateChunk:
        chunk = GenerateChunk(
            tuple(self.tokens),
            tuple(self.logprobs),
            tuple(self.versions),
            finish.reason if finish else None,
            finish.matched if finish else None,
            self.sequence.num_cached,
            self.sequence.num_stale,
            tuple(self.top_logprobs),
        )
        self.tokens, self.logprobs, self.versions, self.top_logprobs = [], [], [], []
        return chunk


@dataclass(frozen=True, slots=True)
class _Update:
    request: Request
    checked: Future[Weights]


class Worker:
    def __init__(self, channel: Channel, core: EngineCore) -> None:
        self._channel = channel
        self._core = core
        self._answers: dict[Sequence, _Answer] = {}
        self._is_paused = False
        self._checker = ThreadPoolExecutor(1, thread_name_prefix="check-weights")
        self._update: _Update | None = None
        self._received = Received()

    def run(self) -> None:
        """Serve until the main process closes the channel."""
        while True:
            is_idle = self._is_paused or not self._core.has_work
            first = self._channel.receive(timeout_s=HEARTBEAT_S) if is_idle else None
            for request in [*([first] if first else []), *self._channel.poll()]:
                self._handle(request)
            if self._update is not None and (is_idle or self._update.checked.done()):
                self._apply_update()
            self._drop_cancelled()
            if not self._is_paused:
                self._step()
            self._beat()

    def _handle(self, request: Request) -> None:
        handlers = {
            "generate": self._generate,
            "abort": self._abort,
            "sees": self._sees,
            "receive_weights": self._receive_weights,
            "update_weights": self._update_weights,
            "pause": self._pause,
            "resume": self._resume,
            "load": self._load,
            "open_entrance": self._open_entrance,
        }
        try:
            if request.channel is not self._channel and request.method not in FOR_GUESTS:
                raise EngineError(f"{request.method!r} is for the main process")
            handlers[request.method](request)
        except EngineError as exc:
            request.fail(exc)

    def _generate(self, request: Request) -> None:
        generate = decode_generate(request.payload)
        sequence = self._core.add(generate.request)
        self._answers[sequence] = _Answer(
            request,
            sequence,
            generate.request.request_id,
            generate.is_streamed,
            time.monotonic(),
        )

    def _abort(self, request: Request) -> None:
        """End a request early. Its stream gets the sampled tokens and a last chunk that says so."""
        for answer in list(self._answers.values()):
            if answer.request_id == request.payload:
                self._core.remove(answer.sequence)
                del self._answers[answer.sequence]
                answer.send(Finish(FinishReason.ABORT))
        request.reply()

    def _sees(self, request: Request) -> None:
        request.reply(Path(request.payload).exists())

    def _receive_weights(self, request: Request) -> None:
        """Write received weights in the thread that also checks them: the write may have to wait
        for a disk."""

        def write() -> None:
            try:
                request.reply(self._received.write(request.buffers[0], **request.payload))
            except (EngineError, OSError) as exc:
                request.fail(exc)

        self._checker.submit(write)

    def _update_weights(self, request: Request) -> None:
        """Check the new weights beside generation; `_apply_update` pauses it for the copy only."""
        path, checksum = request.payload["path"], request.payload["checksum"]
        if path is None:
            self._core.update_weights(request.payload["version"], None)
            request.reply({"paused_s": 0.0})
            return
        checked = self._checker.submit(
            open_weights,
            Path(path),
            self._core.architecture,
            checksum=checksum,
            base=self._core.model_dir if request.payload["contents"] == "changed" else None,
        )
        self._update = _Update(request, checked)

    def _apply_update(self) -> None:
        assert self._update is not None
        request, checked = self._update.request, self._update.checked
        self._update = None
        if request.cancelled:  # too late: the main process counts on the old version by now
            return
        try:
            weights = checked.result()
        except EngineError as exc:
            request.fail(exc)
            return
        started = time.monotonic()
        self._core.update_weights(request.payload["version"], weights)
        self._received.forget()
        request.reply({"paused_s": time.monotonic() - started})

    def _pause(self, request: Request) -> None:
        self._is_paused = True
        request.reply()

    def _resume(self, request: Request) -> None:
        self._is_paused = False
        request.reply()

    def _load(self, request: Request) -> None:
        self._drop_cancelled()
        scheduler = self._core.scheduler
        request.reply({"running": len(scheduler.running), "waiting": len(scheduler.waiting)})

    def _open_entrance(self, request: Request) -> None:
        door = GuestDoor(
            self._channel, token=request.payload["token"], host=request.payload["host"]
        )
        request.reply({"port": door.port})

    def _drop_cancelled(self) -> None:
        for answer in [a for a in self._answers.values() if a.request.cancelled]:
            self._core.remove(answer.sequence)
            del self._answers[answer.sequence]

    def _step(self) -> None:
        try:
            sampled = self._core.step()
        except EngineError as exc:  # these weights serve nobody; the next ones may
            answers, self._answers = self._answers, {}
            self._core.remove_all()
            for answer in answers.values():
                answer.request.fail(exc)
            return
        self._deliver(sampled)

    def _deliver(self, sampled: list[SampledToken]) -> None:
        for token in sampled:
            answer = self._answers[token.sequence]
            answer.add(token)
            if token.finish is not None:
                del self._answers[token.sequence]
                answer.send(token.finish)
            elif answer.is_streamed:
                answer.send()

    def _beat(self) -> None:
        now = time.monotonic()
        for answer in self._answers.values():
            if now - answer.sent_at > HEARTBEAT_S:
                answer.send()
