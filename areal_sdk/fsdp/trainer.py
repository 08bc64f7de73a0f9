"""The built-in trainer (`trainer.name = "fsdp"`), in the main process. Light: torch lives in the ranks."""

import asyncio
import logging
import shlex
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from areal_sdk.errors import (
    ArealError,
    CheckpointError,
    ConfigError,
    MemoryShortError,
    ProcessError,
    raised_here,
    require_package,
)
from areal_sdk.fsdp.directories import PublishDir, allocate, this_boot
from areal_sdk.fsdp.group_wire import decode_tokens, encode_demonstrations, encode_groups
from areal_sdk.fsdp.rank_calls import AllRanks, InTurn, Parcel, Published, RankCalls
from areal_sdk.fsdp.spec import TrainerSpec
from areal_sdk.launch import LocalLauncher
from areal_sdk.launcher import Launcher, first_exit
from areal_sdk.models.families import adapted_layers, check_heads, check_trained
from areal_sdk.process import (
    REPEATABLE_MATH,
    Child,
    ProcessSpec,
    Reservation,
    gpus_of,
)
from areal_sdk.process.frames import view_of
from areal_sdk.process.services import Client
from areal_sdk.process.threads import in_thread
from areal_sdk.trainer import (
    Demonstration,
    IdleGroups,
    Learning,
    Trainer,
    TrainerInfo,
    TrainerSetup,
)
from areal_sdk.trajectory import TrajectoryGroup
from areal_sdk.types import WeightUpdate

logger = logging.getLogger(__name__)

JSON = Any

ENTRY = "areal_sdk.fsdp.rank:main"
CHUNK_BYTES = 16 * 2**20
"""Largest piece, in bytes, of published weights that come from another machine. Both sides hold one piece in memory."""
SAVE_TIMEOUT_S = 900.0
"""Seconds for all ranks to write or read a checkpoint."""
RELEASE_TIMEOUT_S = 60.0
"""Seconds for all ranks to free the memory that they can."""
PUBLISH_TIMEOUT_S = 300.0
"""Seconds for the ranks to gather and write the weights, and for one piece of them to come from another machine."""
EXPLANATION_GRACE_S = 0.5
"""Seconds for a call in progress to explain why a rank died."""

KEEP_FREED_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
}
"""Environment of ranks in which glibc keeps freed memory. Otherwise it gives freed tensors back to the kernel and
takes them anew page by page, zeroed, which costs a tenth of a step."""


def make_trainer(setup: TrainerSetup) -> "FSDPTrainer":
    """The trainer of a run. ConfigError if it cannot train the model, or if torch is missing."""
    for package in ("torch", "transformers"):
        require_package(package, extra="train", needed_for="training")
    lora = setup.trainer.lora
    if lora.rank:
        require_package("peft", extra="lora", needed_for="an adapter (trainer.lora)")
    if not setup.only_exports:
        check_trained(setup.model_dir)
        check_heads(setup.model_dir, setup.trainer.sequence_ranks)
        adapted_layers(setup.model_dir, lora.targets)
    is_partial = lora.rank and "changed" in setup.engine_accepts
    spec = TrainerSpec(
        setup.model_dir,
        run=setup.run,
        trainer=setup.trainer,
        preset=setup.preset,
        fine_tunes=setup.learning is not Learning.EPISODES,
        learns_rewards=setup.learning is Learning.REWARDS,
        publish_dtype=setup.publish_dtype,
        publishes="changed" if is_partial else "all",
    )
    return FSDPTrainer(
        spec,
        log_dir=setup.log_dir,
        launcher=setup.launcher,
        say=setup.say,
    )


class FSDPTrainer(Trainer):
    """FSDP2 in rank processes. A rank's death fails the call in progress at once."""

    def __init__(
        self,
        spec: TrainerSpec,
        *,
        log_dir: Path,
        launcher: Launcher | None = None,
        say: Callable[[str], None] = logger.warning,
    ) -> None:
        """`log_dir` is in the run directory, which every rank must see, because ranks save there."""
        self._say = say
        self.spec = replace(spec, model_dir=spec.model_dir.absolute())
        self._log_dir = log_dir.absolute()
        self._launcher = launcher or LocalLauncher(log_dir=self._log_dir)
        self._all = AllRanks()
        self._in_turn = InTurn(self._all)
        self._ranks = Client[RankCalls](self._in_turn)
        self._beside = Client[RankCalls](self._all)
        self._own_publish_dir: PublishDir | None = None
        self._shares_memory = True
        self._info = TrainerInfo()

    async def start(self) -> None:
        """Start the ranks; return when every rank has loaded the model."""
        if self.spec.publish_dir is None:
            self._own_publish_dir = PublishDir(size=self.spec.published_size)
            self.spec = replace(self.spec, publish_dir=self._own_publish_dir.path)
        self._log_dir.mkdir(0o700, parents=True, exist_ok=True)
        # Its name is new: a rank that finds it sees this directory, and not one like it.
        with tempfile.NamedTemporaryFile(prefix=".seen-by-ranks-", dir=self._log_dir) as probe:
            await self._launch({"probe": probe.name, "boot": this_boot()})

    async def _launch(self, surroundings: Mapping[str, str]) -> None:
        specs = [
            ProcessSpec(
                name=f"trainer-{rank}",
                entry=ENTRY,
                args={"spec": self.spec.to_json(), **surroundings},
                env=KEEP_FREED_MEMORY | (REPEATABLE_MATH if self.spec.run.deterministic else {}),
                threads=self.spec.trainer.threads,
                reserves=Reservation(self.spec.trainer.threads, gpus_of(self.spec.trainer.device)),
            )
            for rank in range(self.spec.trainer.ranks)
        ]
        with raised_here(ConfigError), raised_here(MemoryShortError):
            self._all.children = await self._launcher.launch(specs)
        hello = self.children[0].hello
        self._shares_memory = hello["shares_memory"]
        self._info = TrainerInfo(
            hello["num_parameters"],
            hello["device"],
            hello["learns_alone"],
            IdleGroups(hello["idle_groups"]),
        )
        self._tell(hello["notices"])

    def _tell(self, notices: Sequence[str]) -> None:
        for notice in notices:
            self._say(f"trainer: {notice}")

    @property
    def info(self) -> TrainerInfo:
        return self._info

    @property
    def children(self) -> Sequence[Child]:
        """The processes of the ranks, in their order."""
        return self._all.children

    @property
    def is_alive(self) -> bool:
        return not any(rank.exited.done() for rank in self.children)

    async def died(self) -> ArealError:
        dead = await first_exit(self.children)
        await asyncio.sleep(EXPLANATION_GRACE_S)
        return dead.death()

    @property
    def pids(self) -> Mapping[str, int]:
        return {rank.name: rank.pid for rank in self.children if rank.pid}

    async def step(
        self, groups: Sequence[TrajectoryGroup], *, version: int, timeout_s: float
    ) -> Mapping[str, float]:
        # A large batch takes half a second, and callers and engines are served on this loop.
        parcel = await in_thread(lambda: Parcel.of(*encode_groups(groups)), name="encode batch")
        report = await self._ranks.call(RankCalls.step, parcel, version, timeout_s=timeout_s)
        self.notices, self.credit = report.notices, report.credit
        self.tokens = None if report.tokens is None else decode_tokens(*report.tokens.content())
        return report.metrics

    async def learn(
        self,
        rows: Sequence[Demonstration],
        *,
        learning_rate: float,
        divisor: float | None = None,
        timeout_s: float = 600.0,
    ) -> Mapping[str, float]:
        parcel = await _encoded(rows)
        report = await self._ranks.call(
            RankCalls.learn, parcel, learning_rate, divisor, timeout_s=timeout_s
        )
        self._tell(report.notices)
        return report.metrics

    async def score(
        self, rows: Sequence[Demonstration], *, timeout_s: float = 600.0
    ) -> Sequence[float]:
        return await self._ranks.call(RankCalls.score, await _encoded(rows), timeout_s=timeout_s)

    async def publish(self, version: int) -> WeightUpdate:
        published = await self._ranks.call(RankCalls.publish, version, timeout_s=PUBLISH_TIMEOUT_S)
        return published.update if self._shares_memory else await self._fetch(published)

    async def _fetch(self, published: Published) -> WeightUpdate:
        """The update, copied over the connection from the machine of rank 0 to this machine."""
        update = published.update
        assert update.path is not None
        assert self.spec.publish_dir is not None
        first = Client[RankCalls](self.children[0])
        path, crc = self.spec.publish_dir / Path(update.path).name, 0
        allocated = await in_thread(lambda: allocate(path, published.size), name="allocate weights")
        with allocated as file:
            for offset in range(0, published.size, CHUNK_BYTES):
                chunk = await first.call(
                    RankCalls.fetch,
                    update.path,
                    offset,
                    CHUNK_BYTES,
                    timeout_s=PUBLISH_TIMEOUT_S,
                )
                crc = await in_thread(
                    partial(_append, file, view_of(chunk.data), crc), name="write weights"
                )
        if f"crc32:{crc:08x}" != update.checksum:
            raise ProcessError(
                f"the weights of version {update.version} arrived damaged from rank 0: "
                f"crc32:{crc:08x} instead of {update.checksum}"
            )
        return replace(update, path=str(path))

    async def release_memory(self) -> None:
        await self._ranks.call(RankCalls.release_memory, timeout_s=RELEASE_TIMEOUT_S)

    async def save(self, directory: Path, extra: Mapping[str, JSON]) -> None:
        await (await self.begin_save(directory, extra))

    async def begin_save(
        self, directory: Path, extra: Mapping[str, JSON]
    ) -> "asyncio.Future[None]":
        """The ranks copy their state into host memory, and write the copy in a thread."""
        await self._ranks.call(
            RankCalls.begin_save,
            _absolute(directory),
            Parcel.of(dict(extra)),
            timeout_s=SAVE_TIMEOUT_S,
        )
        # Not in turn: the steps meanwhile do not wait for it.
        finishing = self._beside.call(RankCalls.finish_save, timeout_s=SAVE_TIMEOUT_S)
        return asyncio.create_task(finishing, name=f"trainer: write {directory.name}")

    async def load(self, directory: Path) -> Mapping[str, JSON]:
        saved = await self._ranks.call(
            RankCalls.load, _absolute(directory), timeout_s=SAVE_TIMEOUT_S
        )
        extra: Mapping[str, JSON] = saved.content()[0]
        return extra

    async def roll_back(self, directory: Path) -> None:
        await self._ranks.call(RankCalls.roll_back, _absolute(directory), timeout_s=SAVE_TIMEOUT_S)

    async def export(self, directory: Path) -> None:
        await self._ranks.call(RankCalls.export, _absolute(directory), timeout_s=SAVE_TIMEOUT_S)

    def export_checkpoint(self, checkpoint: Path, directory: Path) -> None:
        """Export in a process of its own, without ranks: this process has no torch."""
        command = [sys.executable, "-P", "-m", "areal_sdk.fsdp.checkpoint.export"]
        command += [str(checkpoint), str(directory)]
        command += [str(self.spec.model_dir), self.spec.publish_dtype]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            why = (done.stderr.strip() or "it was killed").splitlines()[-1]
            raise CheckpointError(f"{why}; to see more: {shlex.join(command)}")

    async def aclose(self) -> None:
        # Ranks that lost one of them end as failures: torchrun waits for the other machines of one that ended well.
        is_broken = any(rank.exited.done() for rank in self.children)
        ends = (rank.kill() if is_broken else rank.aclose() for rank in self.children)
        await asyncio.gather(*ends)
        await self._in_turn.idle()  # with the ranks the last call has ended
        if self._own_publish_dir is not None:
            published, self._own_publish_dir = self._own_publish_dir, None
            await in_thread(published.remove, name="remove published weights")  # may be gigabytes


async def _encoded(rows: Sequence[Demonstration]) -> Parcel:
    return await in_thread(lambda: Parcel.of(*encode_demonstrations(rows)), name="encode rows")


def _absolute(directory: Path) -> str:
    return str(directory.absolute())


def _append(file: BinaryIO, chunk: memoryview, crc: int) -> int:
    file.write(chunk)
    return zlib.crc32(chunk, crc)
