"""The output layer: logprobs of trained tokens, and the entropies of the distributions they come from.

If no gradient is needed, another statistic of each distribution may take the place of the entropy.

A row has as many logits as the vocabulary has tokens, so logits exist only for a chunk of rows at a
time. The logits of the first chunk are kept for the backward pass. The logits of every other chunk are
computed again in the backward pass. So a batch of one chunk computes nothing twice, and a batch of a
hundred chunks takes no more memory than a batch of two.

Some models cap their logits: a logit z becomes cap tanh(z / cap).

Shapes: R rows whose logits are needed, T loss terms, H hidden, V vocabulary; r rows of a chunk.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from areal_sdk.fsdp.kernels import CHUNK_BYTES, PIECE_ELEMENTS

Statistic = Callable[[Tensor], Tensor]
"""A function from the logprobs of distributions, (r, V), to one number each, (r,). It is called for some rows at a
time, in order."""


class OutputLayer(nn.Linear):
    """A model's own output layer, whose logits are reduced to numbers chunk by chunk and never kept whole."""

    def __init__(
        self, layer: nn.Linear, *, is_exact: bool = False, cap: float | None = None
    ) -> None:
        """Take the weight of `layer`. `is_exact`: compute in float32, whatever autocast says."""
        super().__init__(layer.in_features, layer.out_features, bias=False, device="meta")
        self.weight = layer.weight
        self.is_exact = is_exact
        self.cap = cap

    def token_logprobs(
        self,
        hidden_RH: Tensor,
        temperatures_R: Tensor,
        rows_T: Tensor,
        targets_T: Tensor,
        *,
        entropy_gradient: bool = False,
        statistic: Statistic | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Logprobs and entropies as `token_logprobs` computes them, from the logits of this layer."""
        if self.is_exact:
            hidden_RH = hidden_RH.float()
        autocasts = torch.is_autocast_enabled(hidden_RH.device.type) and not self.is_exact
        with torch.autocast(hidden_RH.device.type, enabled=autocasts):
            return token_logprobs(
                hidden_RH,
                self.weight,
                temperatures_R,
                rows_T,
                targets_T,
                entropy_gradient=entropy_gradient,
                statistic=statistic,
                cap=self.cap,
            )


def token_logprobs(
    hidden_RH: Tensor,
    weight_VH: Tensor,
    temperatures_R: Tensor,
    rows_T: Tensor,
    targets_T: Tensor,
    *,
    entropy_gradient: bool = False,
    statistic: Statistic | None = None,
    cap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """log softmax(hidden weight' / T) of each target under its row, and the entropy of that row or its `statistic`.

    Both are (T,), in float32. The entropy has a gradient if `entropy_gradient` is set. The matrix products are in the
    type of autocast, else in that of the arguments.
    """
    if torch.is_autocast_enabled(hidden_RH.device.type):
        hidden_RH = hidden_RH.to(torch.get_autocast_dtype(hidden_RH.device.type))
    logprobs_T, entropies_R = _TokenLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden_RH,
        weight_VH,
        temperatures_R,
        rows_T,
        targets_T,
        entropy_gradient,
        statistic or _entropies,
        torch.is_grad_enabled(),
        cap,
    )
    return logprobs_T, entropies_R[rows_T]


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_RH: Tensor,
        weight_VH: Tensor,
        temperatures_R: Tensor,
        rows_T: Tensor,
        targets_T: Tensor,
        entropy_gradient: bool,
        statistic: Statistic,
        has_backward: bool,
        cap: float | None,
    ) -> tuple[Tensor, Tensor]:
        # The weight's copy in another type is not kept: it is made again in the backward pass.
        weight = weight_VH.to(hidden_RH.dtype)
        chosen_T = torch.empty_like(targets_T, dtype=temperatures_R.dtype)
        normalisers_R = torch.empty_like(temperatures_R)
        entropies_R = torch.empty_like(temperatures_R)
        kept: list[Tensor] = []
        chunks = _chunks(hidden_RH, weight)
        pieces = [rows for chunk in chunks for _, rows in _pieces(chunk, len(weight))]
        terms_of = _TermsOfRows(rows_T, targets_T, pieces if has_backward else chunks)
        for chunk in chunks:
            logits_rV = torch.mm(hidden_RH[chunk], weight.t())
            terms, where = terms_of(chunk)
            chosen_T[terms] = _capped(logits_rV[where], cap).float() / temperatures_R[rows_T[terms]]
            for piece, rows in _pieces(chunk, len(weight)):
                part = _capped(logits_rV[piece], cap) / temperatures_R[rows, None]
                normalisers_R[rows] = torch.logsumexp(part, dim=-1)
                part.sub_(normalisers_R[rows, None])
                entropies_R[rows] = statistic(part)
            if has_backward and not kept:
                kept.append(logits_rV)
        ctx.save_for_backward(hidden_RH, weight_VH, temperatures_R, rows_T, normalisers_R, *kept)
        ctx.entropies_R = entropies_R.detach().clone() if entropy_gradient else None
        ctx.cap, ctx.terms_of = cap, terms_of
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropies_R)
        return chosen_T - normalisers_R[rows_T], entropies_R

    @staticmethod
    def backward(ctx: Any, grad_T: Tensor, grad_R: Tensor) -> tuple[Tensor | None, ...]:
        hidden_RH, weight_VH, temperatures_R, rows_T, normalisers_R, first_rV = ctx.saved_tensors
        weight = weight_VH.to(hidden_RH.dtype)
        # d logprob_t / d logits = (onehot(target) - softmax) / T; terms that share a row add up.
        weights_T = grad_T / temperatures_R[rows_T]
        total_R = torch.zeros_like(temperatures_R).index_add_(0, rows_T, weights_T)
        grad_RH = torch.empty_like(hidden_RH)
        grad_VH: Tensor | None = None
        for chunk in _chunks(hidden_RH, weight):
            if chunk.start == 0:
                logits_rV, grad_rV = first_rV, torch.empty_like(first_rV)
            else:
                logits_rV = grad_rV = torch.mm(hidden_RH[chunk], weight.t())  # overwritten
            for piece, rows in _pieces(chunk, len(weight)):
                part = _capped(logits_rV[piece], ctx.cap) / temperatures_R[rows, None]
                part.sub_(normalisers_R[rows, None])
                slope = -total_R[rows, None]
                if ctx.entropies_R is not None:
                    # d entropy / d logits = -softmax (log softmax + entropy) / T
                    share = grad_R[rows] / temperatures_R[rows]
                    slope = slope - share[:, None] * (part + ctx.entropies_R[rows, None])
                part.exp_().mul_(slope)
                # Before rounding: where a token is nearly certain, one and its probability cancel.
                terms, where = ctx.terms_of(rows)
                part.index_put_(where, weights_T[terms], accumulate=True)
                if ctx.cap is not None:  # d cap tanh(z / cap) / dz
                    part.mul_(1.0 - torch.tanh(logits_rV[piece].float() / ctx.cap).square())
                grad_rV[piece] = part
            grad_RH[chunk] = torch.mm(grad_rV, weight)
            if ctx.needs_input_grad[1]:
                grad_VH = _add_product(grad_VH, grad_rV, hidden_RH[chunk])
        return grad_RH, grad_VH, *(None,) * 7


def _entropies(logprobs_rV: Tensor) -> Tensor:
    """The entropies, not computed as normaliser - sum p logit, in which the digits of large logits would cancel."""
    return -logprobs_rV.exp().mul_(logprobs_rV).sum(-1)


def _capped(logits: Tensor, cap: float | None) -> Tensor:
    return logits if cap is None else torch.tanh(logits.float() / cap) * cap


def _chunks(hidden_RH: Tensor, weight_VH: Tensor) -> list[slice]:
    """Rows whose logits exist at once."""
    size = CHUNK_BYTES // (len(weight_VH) * hidden_RH.element_size())
    return _slices(len(hidden_RH), size)


def _pieces(chunk: slice, vocabulary: int) -> list[tuple[slice, slice]]:
    """Ranges of rows whose float32 logits exist at once, each counted from the start of the chunk and of the batch."""
    pieces = _slices(chunk.stop - chunk.start, PIECE_ELEMENTS // vocabulary)
    return [(p, slice(chunk.start + p.start, chunk.start + p.stop)) for p in pieces]


def _slices(count: int, size: int) -> list[slice]:
    size = max(1, size)
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


class _TermsOfRows:
    """Finds the terms of each range of rows. It waits for the device once, and not at all if there is one range."""

    def __init__(self, rows_T: Tensor, targets_T: Tensor, ranges: Sequence[slice]) -> None:
        self._rows_T, self._targets_T = rows_T, targets_T
        self._order_T = torch.arange(len(rows_T), device=rows_T.device)
        self._begins = {0: 0, ranges[-1].stop: len(rows_T)}
        if len(ranges) > 1:
            sorted_T, self._order_T = rows_T.sort(stable=True)
            stops = [rows.stop for rows in ranges]
            stops_P = torch.tensor(stops).to(rows_T.device, non_blocking=True)
            self._begins |= zip(stops, torch.searchsorted(sorted_T, stops_P).tolist(), strict=True)

    def __call__(self, rows: slice) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The terms of `rows`, one or several whole ranges, and the place of each term in the logits of `rows`."""
        terms = self._order_T[self._begins[rows.start] : self._begins[rows.stop]]
        return terms, (self._rows_T[terms] - rows.start, self._targets_T[terms])


def _add_product(total_VH: Tensor | None, grad_rV: Tensor, hidden_rH: Tensor) -> Tensor:
    """`total + grad' hidden`. The sum is in float32, also over several products."""
    if total_VH is None:
        return torch.mm(grad_rV.t(), hidden_rH)
    total_VH = total_VH.to(torch.promote_types(total_VH.dtype, torch.float32))
    if total_VH.dtype == hidden_rH.dtype:
        return total_VH.addmm_(grad_rV.t(), hidden_rH)
    return total_VH.add_(torch.mm(grad_rV.t(), hidden_rH))
