"""The policy: logprobs and entropies of a batch."""

from pathlib import Path

import numpy as np
import torch

from areal_sdk.algorithms.batch import make_batch
from areal_sdk.algorithms.examples import make_example
from areal_sdk.algorithms.packing import build_trees
from areal_sdk.fsdp.kernels.blocks import RowBlocks
from areal_sdk.fsdp.policy import load_policy

from .episodes import make_groups


def test_an_exact_head_rounds_no_logits(model_dir: Path) -> None:
    [group] = make_groups(1)
    example = make_example(
        group.trajectories[0], np.ones(len(group.trajectories[0].tokens), dtype=np.float32)
    )
    assert example is not None
    batch = make_batch(build_trees([example.inputs], max_tokens=999), [example], version=0)

    def error(*, exact_head: bool) -> float:
        policy = load_policy(model_dir, exact_head=exact_head)
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            logprobs_T, _ = policy(batch)
            hidden_NH = policy.model.base_model(
                batch.tokens_N[None],
                position_ids=batch.positions_N[None],
                use_cache=False,
                blocks=RowBlocks(batch.trees),
            ).last_hidden_state[0]
        logits_RV = hidden_NH.float()[batch.nodes_R] @ policy.head.weight.t()
        expected = torch.log_softmax(logits_RV, -1)[batch.rows_T, batch.targets_T]
        return float((logprobs_T - expected).abs().max().detach())

    assert error(exact_head=True) < 1e-5 < 1e-4 < error(exact_head=False)
