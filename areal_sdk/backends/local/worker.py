"""The engine's process: takes requests, steps the core, sends the sampled tokens."""

import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import torch

from areal_sdk.backends.local.core import EngineCore, SampledToken
from areal_sdk.backends.local.forward.checkpoint import Weights, open_weights
from areal_sdk.backends.local.protocol import EngineLoad, LocalOptions, ModelCalls
from areal_sdk.backends.local.push import Received
from areal_sdk.backends.local.sequence import Finish, Sequence
from areal_sdk.engine import GenerateChunk, GenerateRequest
from areal_sdk.errors import EngineError
from areal_sdk.process import JSON, Channel, Request
from areal_sdk.process.frames import view_of
from areal_sdk.process.network.guests import GuestDoor
from areal_sdk.process.services import Answer, Answering, Bulk, Stream
from areal_sdk.types import FinishReason, WeightUpdate

HEARTBEAT_S = 5.0
"""Seconds between signs of life to a stream that waits. A stream that stays silent means that the worker is stuck."""

FOR_GUESTS = ("generate", "abort")
"""The requests that guests may send: rollout nodes and gateway processes. Only the main process may send others."""


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

    stream: Stream[GenerateChunk]
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
            self.stream.send(self._take(None))
            self.sent_at = time.monotonic()
        else:
            self.stream.finish(self._take(finish))

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
            self.sequence.queued_s,
        )
        self.tokens, self.logprobs, self.versions, self.top_logprobs = [], [], [], []
        return chunk


@dataclass(frozen=True, slots=True)
class _Update:
    version: int
    checked: Future[Weights]
    paused_s: Future[float]
    """The answer to the caller: the seconds for which generation was held."""


class Worker(ModelCalls):
    def __init__(self, channel: Channel, core: EngineCore) -> None:
        self._channel = channel
        self._answering = Answering(self, told=(EngineError,))
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
        if request.channel is not self._channel and request.method not in FOR_GUESTS:
            request.fail(EngineError(f"{request.method!r} is for the main process"))
        else:
            self._answering.answer(request)

    def generate(self, request: GenerateRequest, is_streamed: bool) -> Stream[GenerateChunk]:
        sequence = self._core.add(request)
        stream: Stream[GenerateChunk] = Stream()
        self._answers[sequence] = _Answer(
            stream, sequence, request.request_id, is_streamed, time.monotonic()
        )
        return stream

    def abort(self, request_id: str) -> None:
        for answer in list(self._answers.values()):
            if answer.request_id == request_id:
                self._core.remove(answer.sequence)
                del self._answers[answer.sequence]
                answer.send(Finish(FinishReason.ABORT))

    def sees(self, path: str) -> bool:
        return Path(path).exists()

    def receive_weights(self, chunk: Bulk, offset: int, size: int) -> Answer[str]:
        """Write in the thread that also checks weights: the write may have to wait for a disk."""

        def write() -> str:
            path: str = self._received.write(view_of(chunk), offset=offset, size=size)["path"]
            return path

        return self._checker.submit(write)

    def update_weights(self, update: WeightUpdate) -> Answer[float]:
        """Check the new weights beside generation; `_apply_update` pauses it for the copy only."""
        if update.path is None:
            self._core.update_weights(update.version, None)
            return 0.0
        checked = self._checker.submit(
            open_weights,
            Path(update.path),
            self._core.architecture,
            checksum=update.checksum,
            base=self._core.model_dir if update.contents == "changed" else None,
        )
        self._update = _Update(update.version, checked, Future())
        return self._update.paused_s

    def _apply_update(self) -> None:
        assert self._update is not None
        update, self._update = self._update, None
        if not update.paused_s.set_running_or_notify_cancel():
            return  # too late: the main process counts on the old version by now
        try:
            weights = update.checked.result()
        except EngineError as exc:
            update.paused_s.set_exception(exc)
            return
        started = time.monotonic()
        self._core.update_weights(update.version, weights)
        self._received.forget()
        update.paused_s.set_result(time.monotonic() - started)

    def pause(self) -> None:
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False

    def load(self) -> EngineLoad:
        self._drop_cancelled()
        scheduler = self._core.scheduler
        return EngineLoad(len(scheduler.running), len(scheduler.waiting))

    def open_entrance(self, host: str, token: str) -> int:
        return GuestDoor(self._channel, token=token, host=host).port

    def _drop_cancelled(self) -> None:
        for answer in [a for a in self._answers.values() if a.stream.is_cancelled]:
            self._core.remove(answer.sequence)
            del self._answers[answer.sequence]

    def _step(self) -> None:
        try:
            sampled = self._core.step()
        except EngineError as exc:  # these weights serve nobody; the next ones may
            answers, self._answers = self._answers, {}
            self._core.remove_all()
            for answer in answers.values():
                answer.stream.fail(exc)
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
