"""Shorter pauses of Python's garbage collector."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collections() -> Iterator[None]:
    """Collect nothing inside this block, and never examine the objects that are made there.

    For imports: those of torch make a million objects that stay, and looking for garbage among them
    takes a tenth of the time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def short_collections() -> Iterator[None]:
    """Let collections inside this block look only at objects that are younger than the block.

    Python collects in the event loop's thread. A look at all modules, tokenizers and connections of a
    process takes a tenth of a second, and every request waits for it.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
