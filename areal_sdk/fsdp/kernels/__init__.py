"""The parts of a model that the trainer computes itself: attention over trees, and the output layer.

The kernels work on limited amounts at once, which bound their memory. The constants are here, without torch, since the
memory of a step is predicted from them too.
"""

CHUNK_BYTES = 2**28
"""Bytes of the logits of a chunk of rows, in the type of the matrix product."""
PIECE_ELEMENTS = 2**22
"""Number of logits that are processed in float32 at once, small enough for a cache."""
BLOCK_TOKENS = 512
"""Queries of a block of attention. A subtree of up to this many tokens is one block."""
