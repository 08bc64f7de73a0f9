"""The computation of a layer on each token by itself: one gated part, or the few experts that a router chooses.

Shape letters: T tokens of this step, N hidden, E experts, K experts of a token.
"""

from collections import Counter
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from areal_sdk.backends.local.forward.linear import Linear
from areal_sdk.models.experts import Mixture

MakeLinear = Callable[..., Linear]
"""Function that makes a layer: `make(n_in, n_out, has_bias=...)`."""


class FeedForward:
    def __init__(self, hidden: int, inner: int, make: MakeLinear, *, has_bias: bool) -> None:
        self.gate_up = make(hidden, 2 * inner, has_bias=has_bias)
        self.down = make(inner, hidden, has_bias=has_bias)

    @property
    def linears(self) -> Mapping[str, Linear]:
        return {"gate_up": self.gate_up, "down": self.down}

    def __call__(self, normed_TN: Tensor, *, is_fixed: bool) -> Tensor:
        gate, up = self.gate_up(normed_TN).chunk(2, dim=-1)
        return self.down(F.silu(gate).mul_(up))


class Experts:
    """Each token passes the experts to which the router gives the highest probabilities.

    The choice depends on the token alone, and the outputs of its experts are added in the order of
    their numbers: a token's neighbours in a batch change neither.
    """

    def __init__(
        self, hidden: int, mixture: Mixture, make: MakeLinear, *, adds_up_to_one: bool
    ) -> None:
        self.router = make(hidden, mixture.num_experts, has_bias=False)
        self.experts = [
            FeedForward(hidden, mixture.inner, make, has_bias=False)
            for _ in range(mixture.num_experts)
        ]
        self._num_chosen = mixture.chosen
        self._adds_up_to_one = adds_up_to_one

    @property
    def linears(self) -> Mapping[str, Linear]:
        of_experts = {
            f"experts.{number}.{name}": linear
            for number, expert in enumerate(self.experts)
            for name, linear in expert.linears.items()
        }
        return {"router": self.router, **of_experts}

    def __call__(self, normed_TN: Tensor, *, is_fixed: bool) -> Tensor:
        """The output of the layer. With `is_fixed`, each expert computes all rows, because the last digits of a product
        depend on its number of rows."""
        weights_TK, chosen_TK = self._route(normed_TN)
        mixed_TN = torch.zeros_like(normed_TN, dtype=torch.float32)
        # One read a layer: sizes on the host, places on the device. A stable sort keeps the tokens' order.
        sizes = sorted(Counter(chosen_TK.flatten().tolist()).items())
        by_expert = (
            chosen_TK.flatten().argsort(stable=True).split_with_sizes([size for _, size in sizes])
        )
        for (number, _), order in zip(sizes, by_expert, strict=True):
            tokens, places = order // self._num_chosen, order % self._num_chosen
            expert = self.experts[number]
            if is_fixed:
                made = expert(normed_TN, is_fixed=True)[tokens]
            else:
                made = expert(normed_TN[tokens], is_fixed=False)
            mixed_TN.index_add_(0, tokens, made * weights_TK[tokens, places, None])
        return mixed_TN.to(normed_TN.dtype)

    def _route(self, normed_TN: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and numbers of the chosen experts. Weights are rounded as transformers rounds them, but kept in float32."""
        probabilities_TE = self.router(normed_TN).softmax(-1, dtype=torch.float32)
        weights_TK, chosen_TK = probabilities_TE.topk(self._num_chosen, dim=-1)
        if self._adds_up_to_one:
            weights_TK = weights_TK / weights_TK.sum(-1, keepdim=True)
        return weights_TK.to(normed_TN.dtype).float(), chosen_TK
