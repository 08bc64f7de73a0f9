"""The entry of a trainer rank. Every rank gets every request and does the same; rank 0 answers."""

import os
import signal
import socket
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
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
from areal_sdk.fsdp.sharding import Layered
from areal_sdk.fsdp.spec import TrainerSpec
from areal_sdk.fsdp.step import RankTrainer
from areal_sdk.process import Buffer, Channel, ChannelClosedError, Request

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
        while (request := channel.receive()) is not None:
            served.answer(request)
    except ChannelClosedError:
        return
    finally:
        if saver is None or not saver.is_writing:  # else another thread is in a collective
            ranks.leave()
        if own is not None:
            own.remove()


def _check_surroundings(spec: TrainerSpec, probe: Path) -> None:
    """Raise ConfigError if this machine lacks what only shared paths can give it."""
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


class _Rank:
    """A trainer behind named methods."""

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
        self._methods: dict[str, Callable[[Request], JSON]] = {
            "step": self._step,
            "learn": self._learn,
            "score": self._score,
            "publish": self._publish,
            "fetch": self._fetch,
            "release_memory": self._release_memory,
            "begin_save": self._begin_save,
            "load": self._load,
            "roll_back": self._roll_back,
            "export": self._export,
        }

    @property
    def algorithm(self) -> Algorithm:
        return self._trainer.algorithm

    @property
    def num_parameters(self) -> int:
        return sum(p.numel() for p in self._trainer.policy.parameters())

    def prepare(self, lengths: Iterable[int] = ()) -> list[str]:
        """Make room for a step with sequences of these lengths. Returns lines for the user."""
        return self._memory.prepare(self._models, max(lengths, default=0))

    def answer(self, request: Request) -> None:
        if request.method == "finish_save":
            self._saver.when_written(partial(_tell_saved, request))
            return
        try:
            with self._memory.named(request.method):
                reply = self._methods[request.method](request)
        except (ArealError, ValueError) as exc:
            # The caller's mistake, or a full disk; anything else ends this process with its log.
            request.fail(exc)
        else:
            payload, buffers = reply if isinstance(reply, tuple) else (reply, ())
            request.reply(payload, buffers)

    def _step(self, request: Request) -> tuple[JSON, Sequence[Buffer]]:
        payload = request.payload
        groups = decode_groups(payload["groups"], request.buffers)
        notices = self.prepare(len(t.tokens) for group in groups for t in group.trajectories)
        metrics = self._trainer.step(groups, version=payload["version"])
        about, buffers = encode_tokens(self._trainer.tokens)
        reply = {
            "metrics": metrics,
            "notices": [*notices, *self._trainer.notices],
            "credit": {name: [c.advantage, c.by_turn] for name, c in self._trainer.credit.items()},
            "tokens": about,
        }
        return reply, buffers

    def _learn(self, request: Request) -> JSON:
        payload = request.payload
        rows = decode_demonstrations(payload["lengths"], request.buffers)
        notices = self.prepare(len(row.tokens) for row in rows)
        metrics = self._trainer.learn(
            rows, learning_rate=payload["learning_rate"], divisor=payload["divisor"]
        )
        return {"metrics": metrics, "notices": notices}

    def _score(self, request: Request) -> JSON:
        rows = decode_demonstrations(request.payload["lengths"], request.buffers)
        return self._trainer.score(rows)

    def _publish(self, request: Request) -> JSON:
        is_writer = self._trainer.ranks.rank == 0
        update = self._publisher.publish(
            self._trainer.policy, request.payload["version"], is_writer=is_writer
        )
        assert update.path is not None
        size = Path(update.path).stat().st_size if is_writer else 0
        return {**asdict(update), "size": size}

    def _fetch(self, request: Request) -> tuple[None, Sequence[Buffer]]:
        """A part of what rank 0 has published, for a main process on another machine."""
        with Path(request.payload["path"]).open("rb") as file:
            offset, size = request.payload["offset"], request.payload["size"]
            return None, [os.pread(file.fileno(), size, offset)]

    def _release_memory(self, request: Request) -> JSON:
        if self._trainer.ranks.device.type == "cuda":
            torch.cuda.empty_cache()
        return None

    def _begin_save(self, request: Request) -> JSON:
        self._saver.begin(Path(request.payload["directory"]), request.payload["extra"])
        return None

    def _load(self, request: Request) -> JSON:
        return load_checkpoint(self._trainer, Path(request.payload["directory"]))

    def _roll_back(self, request: Request) -> JSON:
        roll_back(self._trainer, Path(request.payload["directory"]))
        return None

    def _export(self, request: Request) -> JSON:
        export_model(self._trainer, Path(request.payload["directory"]), dtype=self._dtype)
        return None


def _tell_saved(request: Request, error: BaseException | None) -> None:
    """Answer, in the thread that wrote the checkpoint, that it is written."""
    try:
        if error is None:
            request.reply()
        elif isinstance(error, ArealError):
            request.fail(error)
        else:  # a defect: this process ends with its log, as after any other one
            traceback.print_exception(error)
            os._exit(os.EX_SOFTWARE)
    except ChannelClosedError:
        pass  # the main process is gone, and the checkpoint is there or not
