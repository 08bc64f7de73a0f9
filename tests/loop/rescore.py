"""Re-score what a run trained with a plain transformers forward, version by version."""

from dataclasses import dataclass
from pathlib import Path

import torch

from areal_sdk.models import resolve_model
from areal_sdk.telemetry import RunDir
from areal_sdk.trajectory import Trajectory
from tests.backends.local.reference import load_served


@dataclass(frozen=True, slots=True)
class Rescoring:
    num_tokens: int
    num_mid_turn_changes: int
    versions: frozenset[int]
    max_error: float


def largest_error(run: RunDir, weights: Path, model_dir: Path | None = None) -> Rescoring:
    """The largest distance of a stored logprob from that of the version it names. Default of the
    model: tiny."""
    records = [run.find_episode(summary.id) for summary in run.list_episodes()]
    trajectories = [t for record in records for t in record.trajectories]
    changes = sum(len(set(turn.versions)) > 1 for r in records for turn in r.episode.turns)
    versions = frozenset(v for t in trajectories for v in t.versions if v >= 0)
    model_dir = model_dir or resolve_model("tiny")
    errors = []
    for version in sorted(versions):
        update = weights / f"v{version}.safetensors" if version > 0 else None
        model = load_served(model_dir, update)
        errors += [e for t in trajectories for e in _errors(model, t, version)]
    return Rescoring(len(errors), changes, versions, max(errors))


def _errors(model: torch.nn.Module, trajectory: Trajectory, version: int) -> list[float]:
    where = [
        i for i, v in enumerate(trajectory.versions) if v == version and trajectory.loss_mask[i]
    ]
    if not where:
        return []
    with torch.no_grad():
        logits = model(torch.tensor(trajectory.tokens)[None]).logits[0].float()
    temperatures = torch.tensor(trajectory.temperatures)[1:, None]
    logprobs = torch.log_softmax(logits[:-1] / temperatures, -1)
    return [
        abs(float(logprobs[i - 1, trajectory.tokens[i]]) - trajectory.logprobs[i]) for i in where
    ]
