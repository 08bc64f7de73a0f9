"""The entry of a trainer rank. Every rank gets every request and does the same; rank 0 answers."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from areal_sdk.algorithms.alone import learns_alone
from areal_sdk.errors import ArealError, ConfigError
from areal_sdk.process import Channel, ChannelClosed, Request
from areal_sdk.trainer.checkpoint import export_model, load_checkpoint, save_checkpoint
from areal_sdk.trainer.fsdp import join_ranks
from areal_sdk.trainer.options import TrainerOptions
from areal_sdk.trainer.trainer import Trainer
from areal_sdk.trainer.weights import Publisher
from areal_sdk.trainer.wire import decode_demonstrations, decode_groups

JSON = Any


def main(channel: Channel, args: JSON) -> None:
    """Serve requests until the main process closes the channel."""
    options = TrainerOptions.from_json(args)
    # Batch systems send it to every process of a run: the main process decides, after a last save.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    torch.set_num_threads(options.threads)
    torch.use_deterministic_algorithms(options.deterministic)
    torch.manual_seed(options.seed)
    transformers.logging.disable_progress_bar()
    ranks = join_ranks(
        rank=int(os.environ.get("RANK", 0)),
        size=int(os.environ.get("WORLD_SIZE", 1)),
        device=_device(options.device),
        timeout_s=options.collective_timeout_s,
    )
    try:
        rank = _Rank(Trainer(options, ranks))
        channel.ready(
            {
                "num_parameters": rank.num_parameters,
                "device": str(ranks.device),
                "learns_alone": rank.learns_alone,
            }
        )
        while (request := channel.receive()) is not None:
            rank.answer(request)
    except ChannelClosed:
        return
    finally:
        ranks.leave()


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

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        options = trainer.options
        self._dtype: torch.dtype = getattr(torch, options.publish_dtype)
        assert options.publish_dir is not None, "the client chooses where weights are published"
        self._publisher = Publisher(options.publish_dir, dtype=self._dtype)
        self._methods: dict[str, Callable[[Request], JSON]] = {
            "step": self._step,
            "sft_step": self._sft_step,
            "publish": self._publish,
            "release_memory": self._release_memory,
            "save": self._save,
            "load": self._load,
            "export": self._export,
        }

    @property
    def learns_alone(self) -> bool:
        return learns_alone(self._trainer.algorithm.advantages)

    @property
    def num_parameters(self) -> int:
        return sum(p.numel() for p in self._trainer.policy.parameters())

    def answer(self, request: Request) -> None:
        try:
            reply = self._methods[request.method](request)
        except (ArealError, ValueError) as exc:
            # The caller's mistake, or a full disk; anything else ends this process with its log.
            request.fail(exc)
        else:
            request.reply(reply)

    def _step(self, request: Request) -> JSON:
        payload = request.payload
        groups = decode_groups(payload["groups"], request.buffers)
        metrics = self._trainer.step(groups, version=payload["version"])
        return {"metrics": metrics, "notices": self._trainer.notices}

    def _sft_step(self, request: Request) -> JSON:
        return self._trainer.imitate(decode_demonstrations(request.payload, request.buffers))

    def _publish(self, request: Request) -> JSON:
        is_writer = self._trainer.ranks.rank == 0
        update = self._publisher.publish(
            self._trainer.policy, request.payload["version"], is_writer=is_writer
        )
        return {"version": update.version, "path": update.path, "checksum": update.checksum}

    def _release_memory(self, request: Request) -> JSON:
        if self._trainer.ranks.device.type == "cuda":
            torch.cuda.empty_cache()
        return None

    def _save(self, request: Request) -> JSON:
        save_checkpoint(self._trainer, Path(request.payload["directory"]), request.payload["extra"])
        return None

    def _load(self, request: Request) -> JSON:
        return load_checkpoint(self._trainer, Path(request.payload["directory"]))

    def _export(self, request: Request) -> JSON:
        export_model(self._trainer, Path(request.payload["directory"]), dtype=self._dtype)
        return None
