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
    ChildDiedError,
    ConfigError,
    DamagedError,
    MemoryShortError,
    ProcessError,
    RemoteError,
    raised_here,
    require_package,
)
from areal_sdk.fsdp.directories import PublishDir, allocate, this_boot
from areal_sdk.fsdp.group_wire import decode_tokens, encode_demonstrations, encode_groups
from areal_sdk.fsdp.spec import TrainerSpec
from areal_sdk.launch import LocalLauncher
from areal_sdk.launcher import Launcher, first_exit
from areal_sdk.models.families import adapted_layers, check_heads, check_trained
from areal_sdk.process import (
    REPEATABLE_MATH,
    Buffer,
    Child,
    ChildReply,
    ProcessSpec,
    Reservation,
    gpus_of,
)
from areal_sdk.process.threads import in_thread
from areal_sdk.trainer import (
    Demonstration,
    IdleGroups,
    Learning,
    Trainer,
    TrainerInfo,
    TrainerSetup,
)
from areal_sdk.trajectory import Credit, TrajectoryGroup
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
FAILURE_GRACE_S = 10.0
"""Seconds that the other ranks have to report what made one of them fail."""
DEATH_GRACE_S = 1.0
"""Seconds to wait, after one rank died, for the report that another had died first."""
EXPLANATION_GRACE_S = 0.5
"""Seconds for a call in progress to explain why a rank died."""

KEEP_FREED_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
}
"""Environment of ranks in which glibc keeps freed memory. Otherwise it gives freed tensors back to the kernel and
takes them anew page by page, zeroed, which costs a tenth of a step."""


def make_trainer(setup: TrainerSetup) -> "FSDPTrainer":
    """The trainer of a run; ConfigError for a model that it does not train, and without torch."""
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
        self._ranks: list[Child] = []
        self._last_call: asyncio.Task[ChildReply] | None = None
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
            self._ranks = await self._launcher.launch(specs)
        hello = self._ranks[0].hello
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
        return self._ranks

    @property
    def is_alive(self) -> bool:
        return not any(rank.exited.done() for rank in self._ranks)

    async def died(self) -> ArealError:
        dead = await first_exit(self._ranks)
        await asyncio.sleep(EXPLANATION_GRACE_S)
        return dead.death()

    @property
    def pids(self) -> Mapping[str, int]:
        return {rank.name: rank.pid for rank in self._ranks if rank.pid}

    async def step(
        self, groups: Sequence[TrajectoryGroup], *, version: int, timeout_s: float
    ) -> Mapping[str, float]:
        # A large batch takes half a second, and callers and engines are served on this loop.
        encoded, buffers = await in_thread(lambda: encode_groups(groups), name="encode batch")
        payload = {"groups": encoded, "version": version}
        reply = await self._call("step", payload, buffers, timeout_s=timeout_s)
        self.notices = tuple(reply.payload["notices"])
        self.credit = {
            name: Credit(advantage, tuple(by_turn))
            for name, (advantage, by_turn) in reply.payload["credit"].items()
        }
        self.tokens = decode_tokens(reply.payload["tokens"], reply.buffers)
        return _metrics(reply.payload["metrics"])

    async def learn(
        self,
        rows: Sequence[Demonstration],
        *,
        learning_rate: float,
        divisor: float | None = None,
        timeout_s: float = 600.0,
    ) -> Mapping[str, float]:
        lengths, buffers = await in_thread(lambda: encode_demonstrations(rows), name="encode rows")
        payload = {"lengths": lengths, "learning_rate": learning_rate, "divisor": divisor}
        reply = await self._call("learn", payload, buffers, timeout_s=timeout_s)
        self._tell(reply.payload["notices"])
        return _metrics(reply.payload["metrics"])

    async def score(
        self, rows: Sequence[Demonstration], *, timeout_s: float = 600.0
    ) -> Sequence[float]:
        lengths, buffers = await in_thread(lambda: encode_demonstrations(rows), name="encode rows")
        reply = await self._call("score", {"lengths": lengths}, buffers, timeout_s=timeout_s)
        # JSON has no NaN: a score that was not finite arrives as None.
        return [float("nan") if value is None else value for value in reply.payload]

    async def publish(self, version: int) -> WeightUpdate:
        reply = await self._call("publish", {"version": version}, timeout_s=PUBLISH_TIMEOUT_S)
        size = reply.payload.pop("size")
        update = WeightUpdate(**reply.payload)
        return update if self._shares_memory else await self._fetch(update, size)

    async def _fetch(self, update: WeightUpdate, size: int) -> WeightUpdate:
        """`update` copied from the machine of rank 0 to this one, over the connection to it."""
        assert update.path is not None
        assert self.spec.publish_dir is not None
        path, crc = self.spec.publish_dir / Path(update.path).name, 0
        with await in_thread(lambda: allocate(path, size), name="allocate weights") as file:
            for offset in range(0, size, CHUNK_BYTES):
                part = {"path": update.path, "offset": offset, "size": CHUNK_BYTES}
                reply = await self._ranks[0].call("fetch", part, timeout_s=PUBLISH_TIMEOUT_S)
                add = partial(_append, file, reply.buffers[0], crc)
                crc = await in_thread(add, name="write weights")
        if f"crc32:{crc:08x}" != update.checksum:
            raise ProcessError(
                f"the weights of version {update.version} arrived damaged from rank 0: "
                f"crc32:{crc:08x} instead of {update.checksum}"
            )
        return replace(update, path=str(path))

    async def release_memory(self) -> None:
        await self._call("release_memory", {}, timeout_s=RELEASE_TIMEOUT_S)

    async def save(self, directory: Path, extra: Mapping[str, JSON]) -> None:
        await (await self.begin_save(directory, extra))

    async def begin_save(
        self, directory: Path, extra: Mapping[str, JSON]
    ) -> "asyncio.Future[None]":
        """The ranks copy their state into host memory, and write the copy in a thread."""
        payload = {**_place(directory), "extra": dict(extra)}
        await self._call("begin_save", payload, timeout_s=SAVE_TIMEOUT_S)
        return asyncio.create_task(self._finish_save(), name=f"trainer: write {directory.name}")

    async def _finish_save(self) -> None:
        # Not a `_call`: the steps meanwhile do not wait for it.
        await self._ask_all("finish_save", {}, (), timeout_s=SAVE_TIMEOUT_S)

    async def load(self, directory: Path) -> Mapping[str, JSON]:
        reply = await self._call("load", _place(directory), timeout_s=SAVE_TIMEOUT_S)
        extra: Mapping[str, JSON] = reply.payload
        return extra

    async def roll_back(self, directory: Path) -> None:
        await self._call("roll_back", _place(directory), timeout_s=SAVE_TIMEOUT_S)

    async def export(self, directory: Path) -> None:
        await self._call("export", _place(directory), timeout_s=SAVE_TIMEOUT_S)

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
        is_broken = any(rank.exited.done() for rank in self._ranks)
        ends = (rank.kill() if is_broken else rank.aclose() for rank in self._ranks)
        await asyncio.gather(*ends)
        if self._last_call is not None:
            await asyncio.wait({self._last_call})  # with the ranks it has ended
        if self._own_publish_dir is not None:
            published, self._own_publish_dir = self._own_publish_dir, None
            await in_thread(published.remove, name="remove published weights")  # may be gigabytes

    async def _call(
        self, method: str, payload: JSON, buffers: Sequence[Buffer] = (), *, timeout_s: float
    ) -> ChildReply:
        """The answer of rank 0, once all ranks have answered. Ranks are not told that a caller was cancelled: one
        that had begun and one that had not would then wait for each other in different collectives."""
        if not self._ranks:
            raise ProcessError(f"the trainer is not running: {method!r} before start()")
        if self._last_call is not None:
            await asyncio.wait({self._last_call})
        asking = self._ask_all(method, payload, buffers, timeout_s=timeout_s)
        self._last_call = asyncio.create_task(asking, name=f"trainer: {method}")
        return await asyncio.shield(self._last_call)

    async def _ask_all(
        self, method: str, payload: JSON, buffers: Sequence[Buffer], *, timeout_s: float
    ) -> ChildReply:
        """Ask all ranks. If one fails alone, the others would wait in a collective, so they get a moment to fail too
        and are then ended."""
        calls = [
            asyncio.create_task(rank.call(method, payload, buffers, timeout_s=timeout_s))
            for rank in self._ranks
        ]
        try:
            done, pending = await asyncio.wait(calls, return_when=asyncio.FIRST_EXCEPTION)
            if pending:
                has_died = any(isinstance(call.exception(), ChildDiedError) for call in done)
                grace_s = DEATH_GRACE_S if has_died else FAILURE_GRACE_S
                _, pending = await asyncio.wait(calls, timeout=grace_s)
            died = [rank for rank in self._ranks if rank.exited.done()]
            if pending:
                await asyncio.gather(*(rank.kill() for rank in self._ranks))
                await asyncio.wait(calls)
        finally:
            for call in calls:
                call.cancel()
        errors = {
            rank: error
            for rank, call in zip(self._ranks, calls, strict=True)
            if (error := call.exception()) is not None
        }
        if errors:
            raise _cause(errors, died)
        return calls[0].result()


_EXPLAINED = {kind.__name__: kind for kind in (CheckpointError, DamagedError, MemoryShortError)}


def _cause(errors: Mapping[Child, BaseException], died: Sequence[Child]) -> BaseException:
    """The error that explains the others: a rank's own exception, else the death of a rank that was killed, since the
    others then died of a broken connection to it."""
    for error in errors.values():
        if isinstance(error, RemoteError):
            kind = _EXPLAINED.get(error.kind)
            return error if kind is None else kind(error.message)
    killed = [rank for rank in died if rank.exited.result().signal is not None]
    return errors[next(rank for rank in (*killed, *died, *errors) if rank in errors)]


def _metrics(values: Mapping[str, JSON]) -> dict[str, float]:
    # JSON has no NaN: a loss or a gradient norm that was not finite arrives as None.
    return {name: float("nan") if value is None else value for name, value in values.items()}


def _place(directory: Path) -> dict[str, JSON]:
    """The absolute path, since a rank under torchrun has a working directory of its own."""
    return {"directory": str(directory.absolute())}


def _append(file: BinaryIO, chunk: memoryview, crc: int) -> int:
    file.write(chunk)
    return zlib.crc32(chunk, crc)
