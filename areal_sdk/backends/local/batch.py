"""The tensors of one forward, made from the scheduler's work."""

import torch

from areal_sdk.backends.local.forward.kv_cache import KVRows
from areal_sdk.backends.local.forward.model import DecodeRun, ForwardInput, PrefillSpan
from areal_sdk.backends.local.scheduler import Work

CPU_PADDING = 192
"""Number of padded positions that cost as much as one more attention call."""
GPU_PADDING = 1 << 20
"""Number of padded positions that a call on a GPU may have, where launches cost time and padding does not."""


def build(work: list[Work], kv: KVRows, *, device: torch.device, pad_to: int = 0) -> ForwardInput:
    """The input of one forward. `pad_to` > 0 makes it a decode of exactly `pad_to` tokens in which each row attends
    alone (deterministic)."""
    tokens: list[int] = []
    positions: list[int] = []
    rows: list[int] = []
    sampled: list[int] = []
    for item in work:
        start, stop = item.sequence.num_computed, item.sequence.num_computed + item.num_new
        if item.is_decode and item.sequence.output:
            tokens.append(item.sequence.output[-1])
        else:
            tokens += item.sequence.tokens()[start:stop].tolist()
        positions += range(start, stop)
        rows += [item.row] * item.num_new
        if item.reaches_end:
            sampled.append(len(tokens) - 1)
    num_decoding = sum(item.is_decode for item in work)
    padding_limit = -1 if pad_to else CPU_PADDING if device.type == "cpu" else GPU_PADDING
    attention: list[DecodeRun | PrefillSpan] = [
        *_decode_runs(work[:num_decoding], padding_limit, device=device),
        *_prefill_spans(work[num_decoding:], num_decoding, device=device),
    ]
    if padding := max(0, pad_to - len(tokens)):
        sampled += range(len(tokens), pad_to)
        tokens += [0] * padding
        positions += [0] * padding
        rows += [kv.scratch_row] * padding
    packed = torch.tensor([*tokens, *positions, *rows, *sampled]).to(device, non_blocking=True)
    tokens_T, positions_T, rows_T, sampled_S = packed.split_with_sizes(
        [len(tokens)] * 3 + [len(sampled)]
    )
    return ForwardInput(
        tokens_T,
        positions_T,
        kv.index(rows_T, positions_T),
        attention,
        sampled_S,
        is_fixed=pad_to > 0,
    )


def _decode_runs(work: list[Work], padding_limit: int, *, device: torch.device) -> list[DecodeRun]:
    """Runs of neighbouring rows whose unequal lengths waste little."""
    runs: list[DecodeRun] = []
    first = 0
    longest = wasted = 0
    for index, item in enumerate(work):
        length = item.sequence.num_computed + 1
        is_neighbour = index > first and item.row == work[index - 1].row + 1
        grown = max(longest, length)
        extra = (grown - longest) * (index - first) + grown - length
        if is_neighbour and wasted + extra <= padding_limit:
            longest, wasted = grown, wasted + extra
            continue
        if index > first:
            runs.append(_decode_run(work, first, index, device=device))
        first, longest, wasted = index, length, 0
    if work:
        runs.append(_decode_run(work, first, len(work), device=device))
    return runs


def _decode_run(work: list[Work], start: int, stop: int, *, device: torch.device) -> DecodeRun:
    lengths = [item.sequence.num_computed + 1 for item in work[start:stop]]
    longest = max(lengths)
    mask = None
    if min(lengths) < longest:
        hidden = torch.arange(longest) >= torch.tensor(lengths)[:, None]
        mask = torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))
        mask = mask[:, None, None].to(device, non_blocking=True)
    rows = slice(work[start].row, work[stop - 1].row + 1)
    return DecodeRun(slice(start, stop), rows, longest, mask)


def _prefill_spans(work: list[Work], offset: int, *, device: torch.device) -> list[PrefillSpan]:
    spans: list[PrefillSpan] = []
    for item in work:
        past = item.sequence.num_computed
        length = past + item.num_new
        mask = None
        if past:
            mask = torch.ones((item.num_new, length), dtype=torch.bool, device=device).tril(past)
        spans.append(PrefillSpan(slice(offset, offset + item.num_new), item.row, length, mask))
        offset += item.num_new
    return spans
