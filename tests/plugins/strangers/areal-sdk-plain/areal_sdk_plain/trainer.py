"""One optimiser step for each batch: each trajectory is a forward and a backward pass of its own."""

import asyncio
import copy
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from areal_sdk.algorithms import Algorithm, Evidence, Needs, PolicyTerms
from areal_sdk.errors import ConfigError
from areal_sdk.trainer import Learning, Trainer, TrainerInfo, TrainerSetup
from areal_sdk.trajectory import Trajectory, TrajectoryGroup
from areal_sdk.types import WeightUpdate

T = TypeVar("T")


class PlainTrainer(Trainer):
    """Trains all weights in float32. The main process keeps its event loop: torch runs in a thread."""

    def __init__(self, setup: TrainerSetup, *, threads: int = 1) -> None:
        """`threads` of torch. ConfigError for an algorithm that reads more than advantages."""
        algorithm = setup.preset.make()
        if not isinstance(algorithm, Algorithm):
            raise ConfigError(f"trainer.name = 'plain' does not know {algorithm!r}")
        if setup.learning is not Learning.EPISODES or setup.trainer.num_minibatches > 1:
            raise ConfigError("trainer.name = 'plain' learns from episodes, in one update a step")
        if algorithm.needs != Needs(coverage=algorithm.needs.coverage):
            raise ConfigError(f"trainer.name = 'plain' cannot give what {setup.preset.name} reads")
        self._setup, self._algorithm, self._threads = setup, algorithm, threads
        self._scratch = Path(tempfile.mkdtemp(prefix="areal-sdk-plain-"))
        self._baselines: Mapping[str, Any] = {}

    async def start(self) -> None:
        await _whole(self._load_model)

    def _load_model(self) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(self._threads)
        settings = self._setup.trainer
        directory = self._setup.model_dir
        self._model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(),
            lr=settings.first_learning_rate,
            betas=(settings.beta1, settings.beta2),
            weight_decay=settings.weight_decay,
        )

    @property
    def info(self) -> TrainerInfo:
        return TrainerInfo(
            num_parameters=sum(p.numel() for p in self._model.parameters()),
            learns_alone=self._algorithm.learns_alone,
            idle_groups=self._algorithm.idle_groups,
        )

    async def step(
        self, groups: Sequence[TrajectoryGroup], *, version: int, timeout_s: float
    ) -> Mapping[str, float]:
        async with asyncio.timeout(timeout_s):
            return await _whole(lambda: self._step(groups, version))

    def _step(self, groups: Sequence[TrajectoryGroup], version: int) -> Mapping[str, float]:
        import torch

        estimate = self._algorithm.advantages(groups, Evidence(self._baselines))
        self._baselines = estimate.baselines
        lengths = Counter[str]()  # trained tokens of each episode
        for one in (one for group in groups for one in group.trajectories if one.num_trained):
            lengths[one.episode_id] += one.num_trained
        shares = self._algorithm.aggregation(list(lengths.values()))
        weights = dict(zip(lengths, shares.weights, strict=True))
        self._optimizer.zero_grad()
        total, num_trained = 0.0, 0
        for number, (group, rows) in enumerate(zip(groups, estimate.advantages, strict=True)):
            for one, row in zip(group.trajectories, rows, strict=True):
                if not one.num_trained or not row[one.loss_mask].any():
                    continue
                terms = self._terms(
                    one, row, number, version, weights[one.episode_id], shares.divisor
                )
                loss = self._algorithm.objective(terms).weighted(terms.weights_T) / terms.divisor
                loss.backward()  # type: ignore[no-untyped-call]
                total += loss.item()
                num_trained += one.num_trained
        most = self._setup.trainer.max_grad_norm
        norm = torch.nn.utils.clip_grad_norm_(self._model.parameters(), most)
        if num_trained:
            self._optimizer.step()
        return {
            "loss": total,
            "num_updates": float(num_trained > 0),
            "num_trained": float(num_trained),
            "num_tokens": float(sum(len(t.branch) for g in groups for t in g.trajectories)),
            "grad_norm": float(norm),
        }

    def _terms(
        self, one: Trajectory, row: Any, group: int, version: int, weight: float, divisor: float
    ) -> PolicyTerms:
        """The loss terms of a trajectory. One update a step: the trust region is centred where it begins."""
        import torch

        mask = one.loss_mask
        tokens = torch.tensor(one.branch.whole.astype("int64"))
        targets = torch.tensor(mask.nonzero()[0] + one.branch.num_before)
        logits_TV = self._model(tokens[None]).logits[0, targets - 1]
        logits_TV = logits_TV / torch.tensor(one.temperatures[mask])[:, None]
        current_T = logits_TV.log_softmax(-1).gather(1, tokens[targets, None])[:, 0]
        ones_T = torch.ones_like(current_T)
        return PolicyTerms(
            current_T=current_T,
            proximal_T=current_T.detach(),
            behaviour_T=torch.tensor(one.logprobs[mask]),
            advantages_T=torch.tensor(row[mask], dtype=torch.float32),
            mask_T=ones_T.bool(),
            sequences_T=torch.zeros_like(targets),
            groups_T=torch.full_like(targets, group),
            lags_T=version - torch.tensor(one.versions[mask]),
            weights_T=ones_T * weight,
            divisor=divisor,
        )

    async def publish(self, version: int) -> WeightUpdate:
        directory = self._scratch / f"{version % 2}"  # the last two versions stay readable
        await _whole(lambda: self._write_weights(directory))
        return WeightUpdate(version, str(directory))

    def _write_weights(self, directory: Path) -> None:
        import torch

        shutil.rmtree(directory, ignore_errors=True)  # an engine may still map these files
        dtype = getattr(torch, self._setup.publish_dtype)
        copy.deepcopy(self._model).to(dtype).save_pretrained(directory)

    async def save(self, directory: Path, extra: Mapping[str, Any]) -> None:
        def write() -> None:
            import torch

            partial = directory.with_name(f".{directory.name}.partial")
            partial.mkdir(parents=True)
            state = {"model": self._model.state_dict(), "optim": self._optimizer.state_dict()}
            torch.save(state, partial / "state.pt")
            kept = {"extra": dict(extra), "baselines": dict(self._baselines)}
            (partial / "kept.json").write_text(json.dumps(kept))
            partial.rename(directory)

        await _whole(write)

    async def load(self, directory: Path) -> Mapping[str, Any]:
        def read() -> Mapping[str, Any]:
            import torch

            state = torch.load(directory / "state.pt", weights_only=True)
            self._model.load_state_dict(state["model"])
            self._optimizer.load_state_dict(state["optim"])
            kept = json.loads((directory / "kept.json").read_text())
            self._baselines = kept["baselines"]
            return dict(kept["extra"])

        return await _whole(read)

    async def export(self, directory: Path) -> None:
        def write() -> None:
            self._write_weights(directory)
            others = shutil.ignore_patterns("*.safetensors*")
            shutil.copytree(self._setup.model_dir, directory, ignore=others, dirs_exist_ok=True)

        await _whole(write)

    async def aclose(self) -> None:
        shutil.rmtree(self._scratch, ignore_errors=True)


async def _whole(work: Callable[[], T]) -> T:
    """The result of `work` in a thread. A caller that is cancelled waits until the work has ended."""
    running = asyncio.create_task(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    finally:
        if not running.done():
            await asyncio.wait({running})
