"""New weights of the policy, and where an engine finds them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

UpdateContents = Literal["all", "changed"]
"""The content of a published update.

* `all`: every tensor of the checkpoint;
* `changed`: only the tensors that may differ from the checkpoint that the engine was started with. All
  others still have the values of this checkpoint, whatever updates the engine took before.
"""


@dataclass(frozen=True, slots=True)
class WeightUpdate:
    """New policy weights, and where an engine finds them."""

    version: int
    path: str | None
    """A safetensors file (memory-mapped, often in shared memory) or a checkpoint directory;
    None for a label-only update: the weights did not change, the version did."""
    checksum: str = ""
    contents: UpdateContents = "all"
    """`changed` only for an engine that accepts it (`InferenceEngine.accepts`)."""
    share_seen: float | None = None
    """Share of visible changes, if the file rounds the trained weights: of all weights that training
    changed, those whose rounded value changed too. None: nothing is rounded, or it is not known."""
    by_policy: "Mapping[str, WeightUpdate]" = field(default_factory=dict)
    """Updates of the policies, in a run with several; `path` is then None."""
