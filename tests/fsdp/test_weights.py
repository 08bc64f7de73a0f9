"""Publishing: what engines map is what the trainer holds."""

import json
import struct
import zlib
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from areal_sdk.errors import ConfigError
from areal_sdk.fsdp import publish as weights
from areal_sdk.fsdp.policy import Policy, load_policy
from areal_sdk.fsdp.publish import Publisher
from areal_sdk.types import WeightUpdate


@pytest.fixture
def policy(model_dir: Path) -> Policy:
    return load_policy(model_dir)


def nudge(policy: Policy, amount: float) -> None:
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(amount)


def published(update: WeightUpdate) -> dict[str, Tensor]:
    assert update.path is not None
    return {name: tensor.clone() for name, tensor in load_file(update.path).items()}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_published_file_holds_the_weights_under_their_names(
    policy: Policy, tmp_path: Path, dtype: torch.dtype
) -> None:
    publisher = Publisher(tmp_path, dtype=dtype)
    for version in (1, 2, 3):
        nudge(policy, 0.25)
        found = published(publisher.publish(policy, version, is_writer=True))
        expected = policy.named_weights()
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[n], p.detach().to(dtype)) for n, p in expected.items())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_an_update_says_which_share_of_the_changed_weights_the_engine_sees(
    policy: Policy, model_dir: Path, tmp_path: Path, dtype: torch.dtype
) -> None:
    publisher = Publisher(tmp_path, dtype=dtype, began_with=model_dir)
    assert publisher.publish(policy, 0, is_writer=True).share_seen is None, "nothing has changed"
    first = {name: p.detach().clone() for name, p in policy.named_weights().items()}
    nudge(policy, 3e-5)
    update = publisher.publish(policy, 1, is_writer=True)
    if dtype is torch.float32:
        assert update.share_seen is None, "nothing is rounded"
        return
    changed = seen = 0
    for name, now in policy.named_weights().items():
        has_changed = now != first[name]
        changed += int(has_changed.sum())
        seen += int((has_changed & (now.to(dtype) != first[name].to(dtype))).sum())
    assert update.share_seen == pytest.approx(seen / changed, abs=0.02)
    assert 0.1 < seen / changed < 0.9
    assert publisher.publish(policy, 2, is_writer=False).share_seen is None


def test_the_version_before_stays_readable_while_the_next_is_written(
    policy: Policy, tmp_path: Path
) -> None:
    publisher = Publisher(tmp_path, dtype=torch.float32)
    first = publisher.publish(policy, 1, is_writer=True)
    before = published(first)
    nudge(policy, 1.0)
    second = publisher.publish(policy, 2, is_writer=True)
    assert first.path != second.path
    assert all(torch.equal(before[name], t) for name, t in published(first).items())
    assert publisher.publish(policy, 3, is_writer=True).path == first.path


def test_a_file_says_its_version_and_its_checksum_is_that_of_its_bytes(
    policy: Policy, tmp_path: Path
) -> None:
    publisher = Publisher(tmp_path, dtype=torch.bfloat16)
    for version in (9, 123456, 123457):
        update = publisher.publish(policy, version, is_writer=True)
        assert update.path is not None
        with safe_open(update.path, framework="pt") as file:
            assert int(file.metadata()["version"]) == version
        assert update.checksum == f"crc32:{zlib.crc32(Path(update.path).read_bytes()):08x}"


def test_tensors_are_aligned(policy: Policy, tmp_path: Path) -> None:
    update = Publisher(tmp_path, dtype=torch.bfloat16).publish(policy, 1, is_writer=True)
    assert update.path is not None
    raw = Path(update.path).read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    json.loads(raw[8 : 8 + length])
    assert (8 + length) % weights.ALIGNMENT == 0


def test_no_room_is_a_clear_error_not_a_bus_error(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(descriptor: int, offset: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full_disk)
    with pytest.raises(ConfigError, match=r"no room for .* GB of published weights"):
        Publisher(tmp_path, dtype=torch.bfloat16).publish(policy, 1, is_writer=True)
    assert list(tmp_path.iterdir()) == []
