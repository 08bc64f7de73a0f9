"""Trained tokens, scored again by a plain transformers forward under the weights that each of them names."""

import copy
import statistics
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, DynamicCache

from areal_sdk.models import resolve_model
from areal_sdk.telemetry import RunDir
from areal_sdk.telemetry.episode_log import EpisodeRecord
from areal_sdk.trajectory import Trajectory

KEEP_WEIGHTS = Path(__file__).parent / "agents" / "kept_weights.py"
"""The plugin that keeps the weights of a run."""


def trained_episodes(run: RunDir) -> Iterator[EpisodeRecord]:
    """The episodes that a step trained."""
    for summary in run.list_episodes():
        record = run.find_episode(summary.id)
        if record.step is not None and not record.is_undone:
            yield record


def rescored(
    trajectories: Sequence[Trajectory], weights: Path, *, model: str, dtype: torch.dtype
) -> list[tuple[float, float]]:
    """The logprob of every trained token as the run stored it, and as transformers computes it in `dtype`.

    `weights` is what the plugin kept: a file for each version, or a mark that it has the weights of the one before. A
    version 0 without a file is `model` as it is.
    """
    scorer = AutoModelForCausalLM.from_pretrained(resolve_model(model), dtype=dtype)
    by_task = sorted(trajectories, key=lambda one: one.task_id)
    found: list[tuple[float, float]] = []
    sampled = {int(v) for one in trajectories for v in one.versions[one.loss_mask]}
    for version in range(max(sampled, default=-1) + 1):
        file = weights / f"v{version}.safetensors"
        if file.exists() or (version and not file.with_suffix(".same").exists()):
            scorer.load_state_dict(load_file(file), strict=False)
        for _, siblings in groupby(by_task, key=lambda one: one.task_id):
            found += _scored(scorer, list(siblings), version)
    return found


@torch.no_grad()
def _scored(
    model: Any, siblings: Sequence[Trajectory], version: int
) -> Iterator[tuple[float, float]]:
    """The tokens of `version`. What all sequences begin with is computed once."""
    sampled = [(one, _places(one, version)) for one in siblings]
    sampled = [(one, places) for one, places in sampled if len(places)]
    if not sampled:
        return
    wholes = [one.branch.whole for one, _ in sampled]
    first = min(int(places[0]) + one.branch.num_before for one, places in sampled)
    shared = _common(wholes, most=first - 1)
    cache = DynamicCache(config=model.config)
    if shared:
        model(_row(wholes[0][:shared]), past_key_values=cache, logits_to_keep=1)
    for (one, places), whole in zip(sampled, wholes, strict=True):
        in_whole = torch.tensor(places) + one.branch.num_before
        logits = model(
            _row(whole[shared:]),
            past_key_values=copy.deepcopy(cache),
            logits_to_keep=in_whole - 1 - shared,
        ).logits[0]
        temperatures = torch.tensor(one.temperatures[places])[:, None]
        every = torch.log_softmax(logits.float() / temperatures, -1)
        again = every.gather(1, _row(whole)[0, in_whole][:, None])[:, 0]
        yield from zip(one.logprobs[places].tolist(), again.tolist(), strict=True)


def _places(one: Trajectory, version: int) -> NDArray[np.intp]:
    return np.flatnonzero((one.versions == version) & one.loss_mask)


def _row(tokens: NDArray[np.int32]) -> torch.Tensor:
    return torch.tensor(tokens[None]).long()


def _common(sequences: Sequence[NDArray[np.int32]], *, most: int) -> int:
    """The number of tokens that all sequences begin with, at most `most`."""
    length = min(most, *(len(one) for one in sequences))
    alike = np.all([one[:length] == sequences[0][:length] for one in sequences], axis=0)
    return length if alike.all() else int(alike.argmin())


def quantiles(differences: Iterable[float]) -> list[float]:
    """Median, 90 %, 99 %, most and mean."""
    found = sorted(differences)
    chosen = [found[round(q * (len(found) - 1))] for q in (0.5, 0.9, 0.99, 1.0)]
    return [*chosen, statistics.fmean(found)]
