"""Frames survive being cut anywhere, and what is not a frame is refused."""

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_sdk.process.frames import (
    MAX_HEADER_BYTES,
    SCRATCH_BYTES,
    Frame,
    FrameDecoder,
    FrameError,
    FrameKind,
    encode,
)

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
SIZES = st.integers(0, 50) | st.sampled_from([SCRATCH_BYTES - 1, SCRATCH_BYTES, SCRATCH_BYTES + 1])
FRAMES = st.builds(
    lambda kind, id, method, payload, sizes: Frame(
        kind, id, method, payload, [bytes([size % 251]) * size for size in sizes]
    ),
    st.sampled_from(FrameKind),
    st.integers(0, 2**40),
    st.text(max_size=10),
    JSON_VALUES,
    st.lists(SIZES, max_size=3),
)


def receive(decoder: FrameDecoder, data: bytes, cuts: Iterator[int]) -> list[Frame]:
    """Feed `data` in pieces of the sizes that `cuts` gives."""
    frames: list[Frame] = []
    view = memoryview(data)
    while view:
        target = decoder.target()
        count = min(len(view), len(target), next(cuts))
        target[:count] = view[:count]
        frames += decoder.received(count)
        view = view[count:]
    return frames


@given(st.lists(FRAMES, max_size=4), st.lists(st.integers(1, 10) | st.integers(1, 400_000)))
def test_frames_arrive_whole_however_they_are_cut(frames: list[Frame], cuts: list[int]) -> None:
    data = b"".join(part for frame in frames for part in encode(frame))
    decoder = FrameDecoder()
    received = receive(decoder, data, itertools.chain(cuts, itertools.repeat(len(data))))
    assert [(f.kind, f.id, f.method, f.payload) for f in received] == [
        (f.kind, f.id, f.method, f.payload) for f in frames
    ]
    assert [[bytes(b) for b in f.buffers] for f in received] == [list(f.buffers) for f in frames]
    assert not decoder.is_mid_frame


def test_one_byte_at_a_time_is_enough() -> None:
    frame = Frame(FrameKind.CALL, 7, "echo", {"a": 1}, [b"xyz", b"", b"w"])
    data = b"".join(encode(frame))
    (received,) = receive(FrameDecoder(), data, iter(lambda: 1, 0))
    assert (received.payload, [bytes(b) for b in received.buffers]) == ({"a": 1}, frame.buffers)


@pytest.mark.parametrize(
    "data",
    [
        b"\0\0\0\0",
        b"\xff\xff\xff\xff",
        b"\x02\0\0\0{}",
        b"\x04\0\0\0null",
        b"\x04\0\0\0\xff\xfe!!",
        b"".join(encode(Frame(FrameKind.CALL))).replace(b'"call"', b'"kall"'),
        b"".join(encode(Frame(FrameKind.CALL))).replace(b'"m":""', b'"m":[]'),
        b"".join(encode(Frame(FrameKind.CALL, buffers=[b"12"]))).replace(b"[2]", b"[-]"),
    ],
)
@pytest.mark.parametrize("cut", [1, 1000])
def test_what_is_not_a_frame_is_refused(data: bytes, cut: int) -> None:
    with pytest.raises(FrameError):
        receive(FrameDecoder(), data, iter(lambda: cut, 0))


def test_a_stranger_cannot_make_us_allocate() -> None:
    decoder = FrameDecoder(max_header_bytes=100, max_buffer_bytes=10)
    with pytest.raises(FrameError, match="buffers of"):
        receive(decoder, b"".join(encode(Frame(FrameKind.CALL, buffers=[b"x" * 11]))), iter([500]))
    with pytest.raises(FrameError, match="a header of"):
        receive(decoder, b"".join(encode(Frame(FrameKind.CALL, 0, "x" * 200))), iter([500]))


def test_bulk_data_in_json_is_refused_with_the_cure() -> None:
    with pytest.raises(ValueError, match="send bulk data as buffers"):
        encode(Frame(FrameKind.CALL, payload="x" * MAX_HEADER_BYTES))
