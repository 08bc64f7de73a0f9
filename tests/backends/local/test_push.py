"""Weights for an engine that does not see their file."""

from pathlib import Path

import pytest

from areal_sdk.backends.local.push import Received
from areal_sdk.errors import EngineError


def test_a_file_that_arrives_in_parts_can_be_opened_and_has_no_name() -> None:
    received = Received()
    received.write(b"seven", offset=0, size=7)
    path = Path(received.write(b"77", offset=5, size=7)["path"])
    assert path.read_bytes() == b"seven77"
    assert "(deleted)" in str(path.readlink())
    path = Path(received.write(b"next", offset=0, size=4)["path"])
    assert path.read_bytes() == b"next"
    received.forget()
    assert not path.exists()


def test_a_machine_without_room_says_so() -> None:
    with pytest.raises(EngineError, match=r"no room for .* GB of weights on the engine's machine"):
        Received().write(b"", offset=0, size=2**60)
