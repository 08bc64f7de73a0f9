"""The entry of a trainer rank. Every rank gets every request and does the same; rank 0 answers."""

import os
import signal
import socket
import traceback
from collections.abc import Iterable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

from areal_sdk.algorithms.algorithm import Algorithm
from areal_sdk.errors import ArealError, ConfigError
from areal_sdk.fsdp.checkpoint import Saver, export_model, load_checkpoint, roll_back
from areal_sdk.fsdp.collectives import join_ranks
from areal_sdk.fsdp.directories import PublishDir, shares_memory
from areal_sdk.fsdp.group_wire import decode_demonstrations, decode_groups, encode_tokens
from areal_sdk.fsdp.memory.activations import StepMemory
from areal_sdk.fsdp.publish import Publisher
from areal_sdk.fsdp.rank_calls import Chunk, Parcel, Published, RankCalls, StepReport
from areal_sdk.fsdp.sharding import Layered
from areal_sdk.fsdp.spec import TrainerSpec
from areal_sdk.fsdp.step import RankTrainer
from areal_sdk.process import Channel, ChannelClosedError, Request
from areal_sdk.process.services import Answering

JSON = Any

COLLECTIVE_TIMEOUT_S = 600.0
"""Seconds that ranks wait for one another before the step fails."""


def main(channel: Channel, args: JSON) -> None:
    """Serve requests until the main process closes the channel."""
    spec = TrainerSpec.from_json(args["spec"])
    # Batch systems send it to every process of a run: the main process decides, after a last save.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _check_surroundings(spec, Path(args["probe"]))
    torch.set_num_threads(spec.trainer.threads)
    torch.use_deterministic_algorithms(spec.run.deterministic)
    rank = int(os.environ.get("RANK", 0))
    torch.manual_seed(spec.run.seed + rank)  # dropout leaves out other inputs on each rank
    transformers.logging.disable_progress_bar()
    ranks = join_ranks(
        rank=rank,
        size=int(os.environ.get("WORLD_SIZE", 1)),
        device=_device(spec.trainer.device),
        timeout_s=COLLECTIVE_TIMEOUT_S,
        sequence_ranks=spec.trainer.sequence_ranks,
    )
    own: PublishDir | None = None
    saver: Saver | None = None
    try:
        assert spec.publish_dir is not None, "the client chooses where weights are published"
        is_shared = shares_memory(spec.publish_dir, boot=args["boot"])
        if ranks.rank == 0 and not is_shared:
            own = PublishDir(size=spec.published_size)  # the main process fetches from here
        memory = StepMemory(spec, ranks)
        with memory.named("load the model"):
            trainer = RankTrainer(spec, ranks)
        saver = Saver(trainer)
        served = _Rank(trainer, saver, own.path if own else spec.publish_dir, memory)
        channel.ready(
            {
                "num_parameters": served.num_parameters,
                "device": str(ranks.device),
                "learns_alone": served.algorithm.learns_alone,
                "idle_groups": served.algorithm.idle_groups,
                "shares_memory": is_shared,
                "notices": served.prepare(),
            }
        )
        answering = _Answering(served, memory)
        while (request := channel.receive()) is not None:
            answering.answer(request)
    except ChannelClosedError:
        return
    finally:
        if saver is None or not saver.is_writing:  # else another thread is in a collective
            ranks.leave()
        if own is not None:
            own.remove()


def _check_surroundings(spec: TrainerSpec, probe: Path) -> None:
    """Raise ConfigError if this machine does not see the run directory or the model."""
    where = f"rank {os.environ.get('RANK', 0)} on {socket.gethostname()} does not see"
    if not probe.is_file():
        raise ConfigError(
            f"{where} the run directory {probe.parent.parent}, where the ranks write checkpoints: "
            "choose a run.dir that every machine of the run has at the same path"
        )
    if not (spec.model_dir / "config.json").is_file():
        raise ConfigError(
            f"{where} the model {spec.model_dir}: give a directory that every machine of the run "
            "has at the same path (--model), or share the cache (AREAL_SDK_CACHE)"
        )


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError('trainer.device = "cuda": torch sees no CUDA device; use "cpu"')
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
        return device
    return torch.device(name)


class _Rank(RankCalls):
    """A trainer behind the contract of the ranks."""

    def __init__(
        self, trainer: RankTrainer, saver: Saver, publish_dir: Path, memory: StepMemory
    ) -> None:
        self._trainer = trainer
        self._saver = saver
        self._memory = memory
        critics = [trainer.critic.model] if trainer.critic is not None else []
        self._models: list[Layered] = [trainer.policy, *critics]
        self._dtype: torch.dtype = getattr(torch, trainer.spec.publish_dtype)
        self._publisher = Publisher(
            publish_dir,
            dtype=self._dtype,
            contents=trainer.spec.publishes,
            began_with=trainer.spec.model_dir,
        )

    @property
    def algorithm(self) -> Algorithm:
        return self._trainer.algorithm

    @property
    def num_parameters(self) -> int:
        return sum(p.numel() for p in self._trainer.policy.parameters())

    def prepare(self, lengths: Iterable[int] = ()) -> list[str]:
        """Make room for a step with sequences of these lengths. Returns lines for the user."""
        return self._memory.prepare(self._models, max(lengths, default=0))

    def step(self, groups: Parcel, version: int) -> StepReport:
        decoded = decode_groups(*groups.content())
        notices = self.prepare(len(t.tokens) for group in decoded for t in group.trajectories)
        metrics = self._trainer.step(decoded, version=version)
        tokens = self._trainer.tokens
        return StepReport(
            metrics,
            (*notices, *self._trainer.notices),
            self._trainer.credit,
            None if tokens is None else Parcel.of(*encode_tokens(tokens)),
        )

    def learn(self, rows: Parcel, learning_rate: float, divisor: float | None) -> StepReport:
        decoded = decode_demonstrations(*rows.content())
        notices = self.prepare(len(row.tokens) for row in decoded)
        metrics = self._trainer.learn(decoded, learning_rate=learning_rate, divisor=divisor)
        return StepReport(metrics, tuple(notices))

    def score(self, rows: Parcel) -> tuple[float, ...]:
        return tuple(self._trainer.score(decode_demonstrations(*rows.content())))

    def publish(self, version: int) -> Published:
        is_writer = self._trainer.ranks.rank == 0
        update = self._publisher.publish(self._trainer.policy, version, is_writer=is_writer)
        assert update.path is not None
        return Published(update, Path(update.path).stat().st_size if is_writer else 0)

    def fetch(self, path: str, offset: int, size: int) -> Chunk:
        with Path(path).open("rb") as file:
            return Chunk(os.pread(file.fileno(), size, offset))

    def release_memory(self) -> None:
        if self._trainer.ranks.device.type == "cuda":
            torch.cuda.empty_cache()

    def begin_save(self, directory: str, extra: Parcel) -> None:
        self._saver.begin(Path(directory), extra.content()[0])

    def finish_save(self) -> "Future[None]":
        saved: Future[None] = Future()
        saved.set_running_or_notify_cancel()  # a caller that gives up cannot cancel it
        self._saver.when_written(partial(_answer_save, saved))
        return saved

    def load(self, directory: str) -> Parcel:
        return Parcel.of(load_checkpoint(self._trainer, Path(directory)))

    def roll_back(self, directory: str) -> None:
        roll_back(self._trainer, Path(directory))

    def export(self, directory: str) -> None:
        export_model(self._trainer, Path(directory), dtype=self._dtype)


class _Answering(Answering):
    """Answers for a rank. A call that runs out of memory says what to lower."""

    def __init__(self, rank: _Rank, memory: StepMemory) -> None:
        # The caller's mistakes, or a full disk; any other error ends this process with its log.
        super().__init__(rank, told=(ArealError, ValueError))
        self._memory = memory

    def call(self, request: Request) -> Any:
        with self._memory.named(request.method):
            return super().call(request)


def _answer_save(saved: "Future[None]", error: BaseException | None) -> None:
    """Answer, in the thread that wrote the checkpoint, that the checkpoint is written, or the error."""
    if error is None:
        saved.set_result(None)
    elif isinstance(error, ArealError):
        saved.set_exception(error)
    else:  # a defect: this rank ends with its log, as after any other one
        traceback.print_exception(error)
        os._exit(os.EX_SOFTWARE)
