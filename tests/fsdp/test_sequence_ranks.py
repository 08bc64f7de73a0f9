"""Ranks that compute each row together learn what one rank learns (Ulysses)."""

from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from areal_sdk.config import TrainerSection
from areal_sdk.errors import ConfigError
from areal_sdk.fsdp.checkpoint import load_checkpoint
from areal_sdk.fsdp.spec import TrainerSpec
from areal_sdk.fsdp.step import RankTrainer
from areal_sdk.fsdp.trainer import FSDPTrainer
from areal_sdk.models.families import check_heads
from areal_sdk.models.tiny import make_tiny_model
from areal_sdk.trainer import Demonstration, PresetSpec
from areal_sdk.trajectory import TrajectoryGroup
from tests.fsdp.episodes import branching_groups
from tests.fsdp.specs import EVERYTHING

from .agreement import assert_same_learning, assert_same_metrics
from .episodes import make_groups
from .specs import changed, trainer_spec


@pytest.fixture(scope="module")
def four_heads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), num_kv_heads=4)


@pytest.fixture
def spec(four_heads: Path) -> TrainerSpec:
    """Rows of many lengths, also odd ones: short ones leave a rank without a term or without a token."""
    spec = trainer_spec(
        four_heads,
        precision="float32",
        device="cpu",
        learning_rate=1e-3,
        num_minibatches=2,
        tokens_per_microbatch=128,
    )
    return replace(spec, preset=PresetSpec(EVERYTHING))


def batch() -> list[TrajectoryGroup]:
    """Trees with shared prompts, and branches of episodes."""
    groups = make_groups(3, seed=1, version=1) + make_groups(1, seed=2, version=0)
    return groups + branching_groups()[:1]


@pytest.mark.long
@pytest.mark.parametrize(
    "settings",
    [
        {"ranks": 2, "sequence_ranks": 2},
        pytest.param({"ranks": 4, "sequence_ranks": 4}, marks=pytest.mark.slow),
        pytest.param({"ranks": 4, "sequence_ranks": 2}, marks=pytest.mark.slow),
        pytest.param({"ranks": 4, "sequence_ranks": 2, "replicas": 2}, marks=pytest.mark.slow),
        pytest.param(
            {"ranks": 2, "sequence_ranks": 2, "activation_checkpointing": "full"},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"ranks": 4, "sequence_ranks": 4, "tokens_per_microbatch": 30}, marks=pytest.mark.slow
        ),
    ],
    ids=str,
)
async def test_ranks_that_share_rows_take_the_steps_of_one_rank(
    spec: TrainerSpec, tmp_path: Path, settings: dict[str, int]
) -> None:
    alone = RankTrainer(spec)
    client = FSDPTrainer(changed(spec, **settings), log_dir=tmp_path / "logs")
    rows = [
        Demonstration((1, 2, 3, 4, 5), (False, True, False, True, True)),
        Demonstration((7, 8), (False, True)),
    ]
    await client.start()
    try:
        for _ in range(2):
            one = alone.step(batch(), version=1)
            many = await client.step(batch(), version=1, timeout_s=120)
            assert 0.0 < one["screened_out"] < 1.0, "the screen acts"
            assert_same_metrics(one, many)
        assert await client.score(rows) == pytest.approx(alone.score(rows), rel=1e-5)
        await client.save(tmp_path / "step-2", {})
    finally:
        await client.aclose()
    together = RankTrainer(spec)
    load_checkpoint(together, tmp_path / "step-2")
    assert_same_learning(alone, together)


@pytest.mark.long
async def test_they_hold_an_update_as_one_rank_does(four_heads: Path, tmp_path: Path) -> None:
    """Each has the distributions of its own tokens alone."""
    spec = trainer_spec(
        four_heads, precision="float32", device="cpu", learning_rate=0.05, warmup_steps=0
    )
    one = RankTrainer(spec).step(batch(), version=1)
    client = FSDPTrainer(changed(spec, ranks=2, sequence_ranks=2), log_dir=tmp_path / "logs")
    await client.start()
    try:
        many = await client.step(batch(), version=1, timeout_s=120)
    finally:
        await client.aclose()
    assert one["update_share"] < 0.5
    for name in ("update_share", "kl_step", "kl_sequence", "kl_behaviour_after"):
        assert many[name] == pytest.approx(one[name], rel=1e-3), name


@pytest.mark.slow
async def test_in_bfloat16_they_differ_by_rounding(spec: TrainerSpec, tmp_path: Path) -> None:
    spec = changed(spec, precision="bfloat16")
    one = RankTrainer(spec).step(batch(), version=1)
    client = FSDPTrainer(changed(spec, ranks=2, sequence_ranks=2), log_dir=tmp_path / "logs")
    await client.start()
    try:
        many = await client.step(batch(), version=1, timeout_s=120)
    finally:
        await client.aclose()
    assert many["loss"] == pytest.approx(one["loss"], rel=0.02)
    assert many["grad_norm"] == pytest.approx(one["grad_norm"], rel=0.02)


def test_what_cannot_be_shared_evenly_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="sequence_ranks = 3 does not divide ranks = 4"):
        TrainerSection(ranks=4, sequence_ranks=3)
    model = make_tiny_model(tmp_path / "model", num_heads=4, num_kv_heads=2)
    check_heads(model, 2)
    with pytest.raises(ConfigError, match=r"does not divide the 2 heads .*num_key_value_heads"):
        check_heads(model, 4)
    with pytest.raises(ConfigError, match=r"does not divide the 4 heads .*num_attention_heads"):
        check_heads(model, 3)
