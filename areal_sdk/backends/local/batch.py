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
        tokens += item.draft
        num_tokens = item.num_new + len(item.draft)
        positions += range(start, start + num_tokens)
        rows += [item.row] * num_tokens
        if item.reaches_end:
            sampled += range(len(tokens) - 1 - len(item.draft), len(tokens))
    num_decoding = sum(item.is_decode for item in work)
    padding_limit = -1 if pad_to else CPU_PADDING if device.type == "cpu" else GPU_PADDING
    attention: list[DecodeRun | PrefillSpan] = [
        *_decode_runs(work[:num_decoding], padding_limit, device=device),
        *_prefill_spans(
            work[num_decoding:],
            sum(1 + len(item.draft) for item in work[:num_decoding]),
            device=device,
        ),
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
    """Runs of neighbouring rows. A run ends where unequal lengths and drafts would need more padding than `padding_limit`."""
    runs: list[DecodeRun] = []
    first = first_token = 0
    longest = widest = area = 0
    for index, item in enumerate(work):
        width = 1 + len(item.draft)
        length = item.sequence.num_computed + width
        is_neighbour = index > first and item.row == work[index - 1].row + 1
        grown = max(longest, length), max(widest, width)
        padding = (index - first + 1) * grown[0] * grown[1] - area - length * width
        if is_neighbour and padding <= padding_limit:
            (longest, widest), area = grown, area + length * width
            continue
        if index > first:
            runs.append(_decode_run(work[first:index], first_token, longest, widest, device=device))
            first_token = runs[-1].tokens.stop
        first, longest, widest, area = index, length, width, length * width
    if work:
        runs.append(_decode_run(work[first:], first_token, longest, widest, device=device))
    return runs


def _decode_run(
    work: list[Work], first_token: int, longest: int, width: int, *, device: torch.device
) -> DecodeRun:
    widths = [1 + len(item.draft) for item in work]
    starts = torch.tensor([item.sequence.num_computed for item in work])
    visible = starts[:, None] + torch.arange(1, width + 1)
    mask = None
    if int(visible.min()) < longest:
        hidden = torch.arange(longest) >= visible[:, :, None]
        mask = torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))
        mask = mask[:, None].to(device, non_blocking=True)
    places = None
    if min(widths) < width:
        filled = torch.arange(width) < torch.tensor(widths)[:, None]
        places = filled.flatten().nonzero().squeeze(1).to(device, non_blocking=True)
    rows = slice(work[0].row, work[-1].row + 1)
    tokens = slice(first_token, first_token + sum(widths))
    return DecodeRun(tokens, rows, longest, mask, width, places)


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
