"""A plain function in a thread of its own."""

import pytest

from areal_sdk.process.threads import in_thread


async def test_a_stop_iteration_arrives_as_an_error() -> None:
    """A future cannot hold one: whoever waits would wait for ever."""
    with pytest.raises(RuntimeError, match="StopIteration") as caught:
        await in_thread(lambda: next(iter(())), name="search")
    assert isinstance(caught.value.__cause__, StopIteration)
