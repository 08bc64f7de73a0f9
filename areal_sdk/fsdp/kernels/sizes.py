"""The amount on which the kernels of a step work at once: it bounds their memory. Imports no torch."""

CHUNK_BYTES = 2**28
"""Bytes of the logits of a chunk of rows, in the type of the matrix product."""
PIECE_ELEMENTS = 2**22
"""Number of logits that are processed in float32 at once, small enough for a cache."""
BLOCK_TOKENS = 512
"""Queries of a block of attention. A subtree of up to this many tokens is one block."""
