"""The memory of a step on a rank, from the numbers of a model: formulas that a test checks. Imports no torch.

The peak is in the backward pass of the second micro-batch, when gradients exist and most activations
still do: before its first layer, in the output layer, or where a layer's activations are computed again.

Shapes: N tokens of a micro-batch, all of them trained.
"""

from dataclasses import dataclass

from areal_sdk.config import TrainerSection
from areal_sdk.fsdp.kernels import BLOCK_TOKENS, CHUNK_BYTES, PIECE_ELEMENTS
from areal_sdk.shapes import ModelShape

FLOAT = 4
"""Bytes of a float32."""
HALF = 2
PLACE = 8
"""Bytes of an index."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Bytes that a step takes on each rank."""

    parameters: int
    moments: int
    gradients: int
    gathered: int
    """Bytes of the copies of weights that a step computes with: of all layers on one rank, of a few layers and the
    embedding on several ranks."""
    activations: int
    """Bytes kept for the backward pass, and those of the layer at work."""
    logits: int

    @property
    def total(self) -> int:
        return self.lasting + self.step

    @property
    def lasting(self) -> int:
        """Bytes that are taken between steps too."""
        return self.parameters + self.moments

    @property
    def step(self) -> int:
        """Bytes that are taken only during a step."""
        return self.gradients + self.gathered + self.activations + self.logits


def predict(
    model: ModelShape, settings: TrainerSection, *, num_tokens: int, stored: str = "bfloat16"
) -> Prediction:
    """The peak of a step with micro-batches of `num_tokens`; `stored`: the type of the checkpoint."""
    step = _Step(model, settings, -(-num_tokens // settings.sequence_ranks))
    at_the_end = step.head()
    in_a_layer = step.recomputed() + step.layer_backward()
    return Prediction(
        parameters=step.parameters(stored),
        moments=2 * FLOAT * step.trained // step.ranks,
        gradients=step.gradients(),
        gathered=step.gathered(),
        activations=step.kept() + max(0, in_a_layer - at_the_end),
        logits=at_the_end,
    )


def largest_context(
    model: ModelShape, settings: TrainerSection, *, memory: int, stored: str = "bfloat16"
) -> int:
    """The longest micro-batch, and so the longest sequence, whose step fits in `memory` bytes a rank; 0: none does."""
    low, high = 0, 1
    while _fits(model, settings, high, memory, stored) and high < 2**24:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if _fits(model, settings, middle, memory, stored):
            low = middle
        else:
            high = middle
    return low


def _fits(
    model: ModelShape, settings: TrainerSection, num_tokens: int, memory: int, stored: str
) -> bool:
    return predict(model, settings, num_tokens=num_tokens, stored=stored).total <= memory


@dataclass(frozen=True, slots=True)
class _Step:
    model: ModelShape
    settings: TrainerSection
    num_tokens: int
    """Tokens of a rank's part of a micro-batch."""

    @property
    def width(self) -> int:
        """Bytes of an element in the type of matrix products."""
        return HALF if self.settings.precision == "bfloat16" else FLOAT

    @property
    def ranks(self) -> int:
        """The number of ranks over which a copy of the model is split."""
        return self.settings.ranks // self.settings.replicas

    @property
    def trained(self) -> int:
        rank = self.settings.lora.rank
        return self.model.adapter(rank) if rank else self.model.parameters

    def parameters(self, stored: str) -> int:
        if not self.settings.lora.rank:
            return FLOAT * self.model.parameters // self.ranks
        matrices = self.model.layers * self.model.matrices
        is_kept_half = stored == self.settings.precision == "bfloat16"
        others = self.model.parameters - matrices + self.trained
        held = matrices * (HALF if is_kept_half else FLOAT) + others * FLOAT
        return held // self.ranks

    def gradients(self) -> int:
        if self.settings.ranks == 1:
            return FLOAT * self.trained
        shards = FLOAT * self.trained // self.ranks
        return FLOAT * self.trained if self.settings.defer_gradient_sync else shards

    def gathered(self) -> int:
        m = self.model
        if self.settings.ranks == 1:
            return 0 if self.width == FLOAT else self._rounded()
        # A layer, the one that is gathered meanwhile, and the buffer that it is gathered into.
        return 3 * self.width * m.layer + FLOAT * m.table

    def _rounded(self) -> int:
        """Bytes of the rounded weights: autocast keeps its copies of all linear layers, and those of experts live as
        long as activations."""
        m = self.model
        experts = m.mixture.num_experts * m.expert if m.mixture else 0
        with_experts = m.layers - max(0, self._num_recomputed - 1)
        return HALF * (m.layers * (m.matrices - experts) + with_experts * experts)

    # activations

    @property
    def _num_recomputed(self) -> int:
        layers = self.model.layers
        which = self.settings.activation_checkpointing
        return {"half": (layers + 1) // 2, "full": layers}.get(which, 0)

    def kept(self) -> int:
        """Bytes kept from the forward pass of all layers, and of what is before and after them."""
        m, n = self.model, self.num_tokens
        recomputed = self._num_recomputed
        inputs = recomputed * FLOAT * m.hidden * n
        angles = 2 * FLOAT * m.head_dim * n
        ends = (2 * FLOAT + self._normed(FLOAT) + self._head_width) * m.hidden * n
        return (m.layers - recomputed) * self.layer_activations() + inputs + angles + ends

    def layer_activations(self) -> int:
        """Bytes kept by one layer."""
        return self._attention_activations() + self._wide_activations()

    def _attention_activations(self) -> int:
        m, width = self.model, self.width
        inputs = width if width == FLOAT else 3 * width
        heads = width * (m.queries + 2 * m.keys) + width * m.queries
        if m.has_normed_heads:
            elements = m.queries + m.keys
            heads += (FLOAT + self._normed(width)) * elements + FLOAT * (m.heads + m.key_heads)
        return (self._norm() + inputs * m.hidden + heads) * self.num_tokens

    def _wide_activations(self) -> int:
        m, width = self.model, self.width
        readers = 2 if m.intermediate else 0
        if m.mixture is not None:  # the router, and the weight of the part beside the experts
            readers += 2 if m.intermediate else 1
        inputs = width if width == FLOAT else readers * width
        wide = 4 * width * m.intermediate + self._expert_activations()
        return (self._norm() + inputs * m.hidden + wide) * self.num_tokens

    def _expert_activations(self) -> int:
        """Bytes per token of the experts' activations: inputs and outputs of the experts that the token chose, the
        values between them, the probabilities of all experts, and places in two orders."""
        m, mixture = self.model, self.model.mixture
        if mixture is None:
            return 0
        of_expert = self.width * (2 * m.hidden + 4 * mixture.inner) + 2 * PLACE
        return mixture.chosen * of_expert + FLOAT * mixture.num_experts

    def _norm(self) -> int:
        """Bytes per token that a norm keeps: its input, its root mean square, and its normalised input."""
        return (FLOAT + self._normed(FLOAT)) * self.model.hidden + FLOAT

    def _normed(self, width: int) -> int:
        """Bytes of an element of a normalised input. Only the gradient of the norm's weight needs it: 0 where an
        adapter leaves that weight frozen."""
        return 0 if self.settings.lora.rank else width

    def recomputed(self) -> int:
        """Bytes of the activations that one layer computes again; 0 if the last layer keeps its own."""
        which = self.settings.activation_checkpointing
        is_last_kept = not self._num_recomputed or (which == "half" and self.model.layers % 2 == 0)
        return 0 if is_last_kept else self.layer_activations()

    def layer_backward(self) -> int:
        """Bytes of gradients: of the residual stream, and of a layer's wide part or its attention, whichever is more.
        Attention comes after the wide part, whose activations are free by then."""
        m, n, width = self.model, self.num_tokens, self.width
        wide = 2 * width * m.intermediate * n + self._expert_gradients()
        return FLOAT * m.hidden * n + max(wide, self._attention() - self._wide_activations())

    def _attention(self) -> int:
        """Bytes of queries, keys and values with their gradients, and of a block's attention. If ranks share a row,
        each has all tokens of some heads, which is as much."""
        m, n, width = self.model, self.num_tokens, self.width
        states = (m.queries + 2 * m.keys) * 2 * width * n
        tokens = n * self.settings.sequence_ranks
        can_fuse = width == HALF or self.settings.device == "cpu"  # CUDA's kernels take no float32
        if m.keeps_scores or not can_fuse or tokens <= BLOCK_TOKENS:
            return (2 * FLOAT + width) * m.heads * min(tokens, BLOCK_TOKENS) * n + states
        # The output again and the logarithms; gradients of queries, and of keys and values for each query head,
        # one of which is added up in float32.
        added = 0 if width == FLOAT else FLOAT
        return ((4 * width + added) * m.queries + FLOAT * m.heads) * n + states

    def _expert_gradients(self) -> int:
        """Bytes of the experts' gradients at the worse of two moments: when the output matrices and the rows have
        gradients that are not added yet, and when the two input matrices have theirs, while most of what the experts
        kept is free."""
        m, mixture, width = self.model, self.model.mixture, self.width
        if mixture is None:
            return 0
        rows = width * (2 * m.hidden + mixture.inner) * mixture.chosen * self.num_tokens
        if self.settings.lora.rank:
            return rows
        added = width if width == FLOAT else width + FLOAT
        matrix = added * mixture.num_experts * m.expert // 3
        return max(rows + matrix, 2 * matrix)

    # the output layer

    @property
    def _head_width(self) -> int:
        return FLOAT if self.settings.head_precision == "float32" else self.width

    def head(self) -> int:
        """Bytes of the output layer: logits, its weight in the type that computes, and gradients not yet added."""
        m, width = self.model, self._head_width
        row = width * m.vocabulary
        rows = min(self.num_tokens, max(1, CHUNK_BYTES // row))
        piece = FLOAT * min(PIECE_ELEMENTS, rows * m.vocabulary)
        copy = 0 if width == FLOAT else width * m.table
        gradient = 0 if self.settings.lora.rank else width * m.table
        hidden = width * m.hidden * self.num_tokens
        if rows < self.num_tokens:  # another chunk beside the first one, which is kept
            return 2 * rows * row + 2 * piece + copy + gradient + hidden
        backward = 2 * rows * row + piece + gradient + hidden
        return max(rows * row + 2 * piece, backward) + copy
