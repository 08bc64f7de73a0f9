"""The gradient of an update, and the same gradient by the book."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from areal_sdk.algorithms.advantages import Evidence, GroupRelative
from areal_sdk.fsdp.step import RankTrainer
from areal_sdk.fsdp.step.optimizer import Applied
from areal_sdk.trajectory import TrajectoryGroup


class GradientTrainer(RankTrainer):
    """Keeps the gradient of its last update."""

    def _apply_gradients(self, learning_rate: float) -> Applied:
        self.gradient = {
            name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
            for name, p in self.policy.named_weights().items()
        }
        return super()._apply_gradients(learning_rate)


def reference_gradient(
    model_dir: Path, groups: list[TrajectoryGroup], *, max_weight: float = 5.0
) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradient by the book: one trajectory at a time, whole logits, no packing."""
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    advantages = GroupRelative(discount=1.0)(groups, Evidence()).advantages
    count = sum(t.num_trained for group in groups for t in group.trajectories)
    loss = torch.zeros(())
    for group, of_group in zip(groups, advantages, strict=True):
        for trajectory, values in zip(group.trajectories, of_group, strict=True):
            tokens = torch.tensor(trajectory.tokens)
            temperatures = torch.tensor(trajectory.temperatures)[1:, None]
            logits = model(tokens[None]).logits[0, :-1] / temperatures
            q = torch.log_softmax(logits, -1).gather(1, tokens[1:, None])[:, 0]
            b = torch.tensor(trajectory.logprobs)[1:]
            w = (q.detach() - b).exp().clamp(max=max_weight)
            ratio = (q - q.detach()).exp()
            mask = torch.tensor(trajectory.loss_mask)[1:]
            loss = loss - (w * ratio * torch.from_numpy(values)[1:])[mask].sum() / count
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.item(), {name: p.grad for name, p in model.named_parameters()}
