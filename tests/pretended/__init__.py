"""A pretended accelerator: which device a tensor is on, and when the host would wait, seen without a GPU.

`pretended` is a torch device. Its tensors are computed by the CPU's kernels in the CPU's memory, so results are those
of the CPU. In three things the device behaves as CUDA does:

- An operator refuses tensors of the host beside tensors of the device.
- It is known where the host waits for the device: where a program reads a value (`item`, `tolist`, `cpu`, `nonzero`,
  a mask as an index), and where it copies to the device without `non_blocking`.
- Fused operators are one launch: attention, RMS norm, lists of tensors (`_foreach_*`), the fused AdamW.

    install()
    with watch() as seen:
        step()
    seen.num_launches, seen.num_waits, seen.report()

What such a device cannot show: time and memory, since nothing is asynchronous and nothing is faster; races between
streams, or host memory that is changed while a copy reads it; shapes, alignments and types that CUDA kernels refuse;
kernels whose sums have another order; launches within an operator that the CPU's kernel does in one.
"""

from tests.pretended.counting import Seen, watch
from tests.pretended.device import install
from tests.pretended.operators import NAME

__all__ = ["NAME", "Seen", "install", "watch"]
