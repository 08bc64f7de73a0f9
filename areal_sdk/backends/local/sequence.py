"""One request on its way through the engine."""

from dataclasses import dataclass, field

import numpy as np

from areal_sdk.backends.local.kv import Tokens
from areal_sdk.backends.local.sampling import Sampling
from areal_sdk.backends.local.stopping import StopRule


@dataclass(slots=True, eq=False)
class Sequence:
    """Prompt, output so far, and how much of both has its KV computed."""

    prompt: Tokens
    sampling: Sampling
    stop: StopRule
    output: list[int] = field(default_factory=list)
    num_computed: int = 0
    """Leading tokens whose KV is in the sequence's row."""
    is_placed: bool = False
    """Whether reusable KV was looked for; until then the row is empty."""
    num_cached: int = 0
    """Prompt tokens that another request had computed."""
    stale_from: int | None = None
    """Output tokens from this one on were sampled on KV of older weights (`kv_on_update="keep"`)."""

    @property
    def num_tokens(self) -> int:
        return len(self.prompt) + len(self.output)

    @property
    def max_tokens(self) -> int:
        """As long as it can become."""
        return len(self.prompt) + self.stop.max_new_tokens

    @property
    def num_pending(self) -> int:
        """Tokens whose KV is missing; at least one, the newest."""
        return self.num_tokens - self.num_computed

    @property
    def num_stale(self) -> int:
        return 0 if self.stale_from is None else len(self.output) - self.stale_from

    def tokens(self) -> Tokens:
        if not self.output:
            return self.prompt
        return np.concatenate([self.prompt, np.asarray(self.output, dtype=np.int32)])

    def forget_kv(self) -> None:
        """Compute everything again, from the prompt on."""
        self.num_computed = 0
        self.is_placed = False
