"""A sampling step looks at its tensors only in its one read: elsewhere a GPU would make the host wait.

The CPU dispatches no operator for `tolist`, so these tests see `item`, `bool`, `nonzero` and masks as indices.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from areal_sdk.backends.local.sampling import SamplerRow, sample
from areal_sdk.engine import Sampling

LOOKS = ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select")
"""Operators whose result depends on values, not only on shapes."""
INDEXING = ("aten::index", "aten::index_put_")


class Looks(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counter of the operators for which a GPU would make the host wait."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = func.name().partition(".")[0]
        has_mask = name in INDEXING and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        if has_mask or name in LOOKS:
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("look", [lambda x: x[x > 0], lambda x: bool(x.any()), torch.nonzero])
def test_a_look_at_the_values_is_counted(look: Callable[[torch.Tensor], object]) -> None:
    with Looks() as looks:
        look(torch.ones(3))
    assert looks.counts.total() >= 1


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.0),
        Sampling(temperature=0.7, top_p=0.9, top_k=20, min_p=0.01),
        Sampling(repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=0.5),
        Sampling(logit_bias={3: 2.0}),
    ],
    ids=["plain", "greedy", "tail", "penalties", "bias"],
)
def test_sampling_looks_at_no_value_before_its_read(sampling: Sampling) -> None:
    rows = [SamplerRow(sampling, generator=Random(seed)) for seed in range(32)]
    for row in rows:
        row.note(5)
    logits = torch.randn(32, 300, generator=torch.Generator().manual_seed(0))
    with Looks() as looks:
        sample(logits, rows)
    assert looks.counts == {}
