"""A checkpoint is copied in the step, written beside the next steps, and loaded by any number of ranks."""

import copy
import json
import shutil
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from areal_sdk.errors import CheckpointError
from areal_sdk.fsdp.collectives import Ranks
from areal_sdk.fsdp.directories import STATE_FILE
from areal_sdk.fsdp.spec import TrainerSpec
from areal_sdk.fsdp.step import RankTrainer
from areal_sdk.models.checkpoint import fingerprint
from areal_sdk.telemetry.checksums import check_files, write_manifest
from areal_sdk.telemetry.directories import (
    begin_directory,
    cannot_write,
    commit_directory,
    partial_of,
)

JSON = Any

FORMAT = 1

MODEL = "model."
RNG, CUDA_RNG = "rng.", "cuda_rng."


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A copy in host memory of everything that `load_checkpoint` needs, so that a run continues with the same bits."""

    ranks: Ranks
    state: Mapping[str, JSON]
    tensors: Mapping[str, Tensor]

    @classmethod
    def of(cls, trainer: RankTrainer, extra: Mapping[str, JSON]) -> Self:
        """Copy the state of `trainer`, which may change as soon as this returns."""
        state = {
            "format": FORMAT,
            "phase": trainer.phase,
            "num_updates": trainer.num_updates,
            "num_steps": trainer.num_steps,
            "critic_updates": None if trainer.critic is None else trainer.critic.num_updates,
            "critic_steps": None if trainer.critic is None else trainer.critic.num_steps,
            "region": trainer.region.state,
            "baselines": trainer.baselines,
            "adapter": _adapter_of(trainer.spec),
            "extra": extra,
        }
        tensors = _tensors(trainer) | _generators(trainer.ranks)
        plainly = StagingOptions(
            use_pinned_memory=False,
            use_shared_memory=False,
            use_async_staging=False,
            use_non_blocking_copy=False,
        )
        copied = DefaultStager(plainly).stage(tensors)
        assert isinstance(copied, dict), "a future comes only of asynchronous staging"
        return cls(trainer.ranks.aside, copy.deepcopy(state), copied)

    def write(self, directory: Path) -> None:
        """Write the checkpoint `directory`. A collective, in any thread.

        If one rank fails, all raise, and an earlier checkpoint at `directory` stays.
        """
        try:
            self.ranks.on_first(lambda: begin_directory(directory))
            self._write_tensors(directory)
            self.ranks.on_first(lambda: self._finish(directory))
        finally:
            if self.ranks.rank == 0:
                shutil.rmtree(partial_of(directory), ignore_errors=True)

    def _write_tensors(self, directory: Path) -> None:
        try:
            with alone_is_fine():
                save(
                    dict(self.tensors),
                    checkpoint_id=partial_of(directory),
                    process_group=self.ranks.group,
                    no_dist=not self.ranks.is_distributed,
                )
        except CheckpointException as exc:
            failure = _first_failure(exc)
            if isinstance(failure, OSError):
                raise cannot_write(directory, failure) from exc
            raise

    def _finish(self, directory: Path) -> None:
        partial = partial_of(directory)
        try:
            (partial / STATE_FILE).write_text(json.dumps(self.state, indent=1), encoding="utf-8")
            write_manifest(partial)
        except OSError as exc:
            raise cannot_write(directory, exc) from exc
        commit_directory(directory)


class Saver:
    """Writes the checkpoints of one trainer in a thread, one at a time, while the trainer goes on."""

    def __init__(self, trainer: RankTrainer) -> None:
        self._trainer = trainer
        self._writing: Future[None] | None = None

    def begin(self, directory: Path, extra: Mapping[str, JSON]) -> None:
        """Wait until the previous checkpoint is written, copy the state, and begin to write the copy."""
        if self._writing is not None:
            wait([self._writing])  # its error, if any, is told to those who wait for it
        snapshot, written = Snapshot.of(self._trainer, extra), Future[None]()
        self._writing = written

        def write() -> None:
            try:
                snapshot.write(directory)
            except BaseException as exc:  # noqa: BLE001 - for those who wait
                written.set_exception(exc)
            else:
                written.set_result(None)

        # A daemon: nobody waits for a checkpoint of a process that is to end.
        threading.Thread(target=write, name=f"write {directory.name}", daemon=True).start()

    def when_written(self, tell: Callable[[BaseException | None], None]) -> None:
        """Call `tell` when the checkpoint that was begun last is written, with its failure if there is one."""
        assert self._writing is not None, "no checkpoint was begun"
        self._writing.add_done_callback(lambda written: tell(written.exception()))

    @property
    def is_writing(self) -> bool:
        return self._writing is not None and not self._writing.done()


def save_checkpoint(trainer: RankTrainer, directory: Path, extra: Mapping[str, JSON]) -> None:
    """Write a checkpoint of `trainer` as it is now. A collective."""
    Snapshot.of(trainer, extra).write(directory)


def load_checkpoint(trainer: RankTrainer, directory: Path) -> Mapping[str, JSON]:
    """Bring `trainer` to the saved state. Returns the saved `extra`. A collective."""
    trainer.ranks.on_first(lambda: check_files(directory))
    state = read_state(directory)
    check_adapter(directory, state.get("adapter"), trainer.spec)
    trainer.phase = state["phase"]
    trainer.num_updates = state["num_updates"]
    trainer.num_steps = state.get("num_steps", trainer.num_updates)
    trainer.region.state = _limit_of(directory, state.get("region"), set(trainer.region.state))
    trainer.baselines = state["baselines"]
    if trainer.critic is not None:  # none was saved where another algorithm was trained: it begins
        trainer.critic.num_updates = state.get("critic_updates") or 0
        trainer.critic.num_steps = state.get("critic_steps") or trainer.critic.num_updates
    has_critic = state.get("critic_updates") is not None
    tensors = _tensors(trainer, with_critic=has_critic, allocate=True)
    saved = FileSystemReader(directory).read_metadata().state_dict_metadata
    # A rank may be new, or have got another device.
    rng = {name: state for name, state in _generators(trainer.ranks).items() if name in saved}
    try:
        with alone_is_fine():
            load(tensors | rng, checkpoint_id=directory, no_dist=not trainer.ranks.is_distributed)
    except CheckpointException as exc:
        raise CheckpointError(f"{directory} cannot be read: {_first_failure(exc)}") from exc
    for name, generator in rng.items():
        if name.startswith(CUDA_RNG):
            torch.cuda.set_rng_state(generator, trainer.ranks.device)
        else:
            torch.set_rng_state(generator)
    extra: Mapping[str, JSON] = state["extra"]
    return extra


def _limit_of(directory: Path, saved: JSON, known: set[str]) -> Mapping[str, JSON]:
    """The state of the update limit. A checkpoint older than the guard has a list: the factor and the calm steps."""
    match saved:
        case None:
            return {}
        case [int() | float() as factor, int() as num_calm]:
            return {"factor": factor, "num_calm": num_calm}
        case dict() if saved.keys() <= known and all(
            isinstance(value, (int, float)) or (value is None and name == "noise")
            for name, value in saved.items()
        ):
            return saved
    raise CheckpointError(
        f"{directory} keeps the limit of updates as {saved!r:.200}, which this version does not read: go on with the "
        "version that wrote it, or begin a new run, with init_from to start from these weights"
    )


def roll_back(trainer: RankTrainer, directory: Path) -> None:
    """Bring weights, moments and baselines of `trainer` to the saved state, with a tighter bound. A collective. The
    clock of the schedule goes on, because going back takes the place of a step."""
    phase, num_steps, tightness = trainer.phase, trainer.num_steps, trainer.region.tightness
    critic_steps = None if trainer.critic is None else trainer.critic.num_steps
    load_checkpoint(trainer, directory)
    trainer.enter(phase)
    trainer.num_steps = num_steps + 1
    if trainer.critic is not None and critic_steps is not None:
        trainer.critic.num_steps = critic_steps + 1
    trainer.region.tightness = max(trainer.region.tightness, tightness)
    trainer.region.tighten()


def _generators(ranks: Ranks) -> dict[str, Tensor]:
    """The states of this rank's random generators, on the host and on the device, where dropout draws."""
    states = {f"{RNG}{ranks.rank}": torch.get_rng_state()}
    if ranks.device.type == "cuda":
        states[f"{CUDA_RNG}{ranks.rank}"] = torch.cuda.get_rng_state(ranks.device)
    return states


def read_state(directory: Path) -> dict[str, JSON]:
    """The parts of a checkpoint beside tensors."""
    try:
        state: dict[str, JSON] = json.loads((directory / STATE_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{directory} is not a checkpoint: it has no {STATE_FILE}") from None
    if state["format"] != FORMAT:
        raise CheckpointError(
            f"{directory} has format {state['format']}, this version reads {FORMAT}"
        )
    return state


def _adapter_of(spec: TrainerSpec) -> JSON:
    """The adapter and the model that it belongs to; None if all weights are trained."""
    lora = spec.trainer.lora
    if not lora.rank:
        return None
    base = {"directory": str(spec.model_dir), "weights": fingerprint(spec.model_dir)}
    return {**lora.model_dump(mode="json", exclude={"dropout"}), "base": base}


def check_adapter(directory: Path, saved: JSON, spec: TrainerSpec) -> None:
    """Raise CheckpointError unless `saved` is the adapter that is trained now, of the same model."""
    now = _adapter_of(spec)
    if saved == now:
        return
    if saved is None or now is None:
        held, wanted = (
            ("all weights", "an adapter") if saved is None else ("an adapter", "all weights")
        )
        raise CheckpointError(
            f"{directory} holds {held}, and the run trains {wanted} (trainer.lora.rank): begin a new run, "
            "with init_from to start from these weights"
        )
    for key in ("rank", "alpha", "targets"):
        if saved[key] != now[key]:
            raise CheckpointError(
                f"{directory} holds an adapter of trainer.lora.{key} = {saved[key]}, and the run has "
                f"{now[key]}: set it as it was"
            )
    if saved["base"]["weights"] != now["base"]["weights"]:
        raise CheckpointError(
            f"{directory} holds an adapter of the weights in {saved['base']['directory']}, and those in "
            f"{spec.model_dir} are others: put the former back"
        )


@contextmanager
def alone_is_fine() -> Iterator[None]:
    """Suppress the warning of DCP about a single process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _first_failure(error: CheckpointException) -> BaseException:
    """The cause of an error: torch's writer wraps the error of a full disk in one of its own."""
    failures = list(error.failures.values())
    failure: BaseException = failures[0][0] if failures else error
    behind: BaseException | None = failure
    while behind is not None and not isinstance(behind, OSError):
        behind = behind.__cause__ or behind.__context__
    return behind or failure


def _tensors(
    trainer: RankTrainer, *, with_critic: bool = True, allocate: bool = False
) -> dict[str, Tensor]:
    """Weights and optimiser moments under stable names. With `allocate`, missing moments are made, to load into."""
    tensors = _learned(
        trainer.policy.named_weights(),
        trainer.optimizer,
        names=(MODEL, "optimizer."),
        with_moments=trainer.num_updates > 0,
        allocate=allocate,
    )
    if trainer.critic is not None and with_critic:
        tensors |= _learned(
            trainer.critic.model.named_weights(),
            trainer.critic.optimizer,
            names=("critic.", "critic_optimizer."),
            with_moments=trainer.critic.num_updates > 0,
            allocate=allocate,
        )
    return tensors


def _learned(
    weights: Mapping[str, nn.Parameter],
    optimizer: torch.optim.Optimizer,
    *,
    names: tuple[str, str],
    with_moments: bool,
    allocate: bool,
) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for name, parameter in weights.items():
        tensors[f"{names[0]}{name}"] = parameter.detach()
        if not with_moments:
            continue
        if allocate:
            optimizer.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                "exp_avg": torch.zeros_like(parameter.detach()),
                "exp_avg_sq": torch.zeros_like(parameter.detach()),
            }
        for key, value in optimizer.state[parameter].items():
            tensors[f"{names[1]}{name}.{key}"] = value
    if allocate and not with_moments:
        optimizer.state.clear()
    return tensors
