"""What a step made of its tokens, on disk."""

from pathlib import Path

import numpy as np
import pytest

from areal_sdk.errors import StorageError
from areal_sdk.telemetry.token_log import (
    CountedGroup,
    CountedMinibatch,
    CountedSequence,
    StepTokens,
    TokenFlag,
    TokenWriter,
    file_of,
    read_tokens,
    steps_in,
)

NAN, INF = float("nan"), float("inf")


def step_tokens(count: int = 3, **columns: list[float]) -> StepTokens:
    """A step of one sequence with `count` tokens, whose policy is still the sampler."""
    zeros = np.zeros(count, np.float32)
    given = {name: np.asarray(column, np.float32) for name, column in columns.items()}
    names = ("advantage", "proximal_minus_behaviour", "train_minus_proximal", "loss", "entropy")
    flags = np.full(count, TokenFlag.COUNTED | TokenFlag.TERM, np.uint8)
    return StepTokens(
        version=4,
        minibatches=(CountedMinibatch(3.0, True),),
        groups=(CountedGroup("g", "t", 0),),
        sequences=(CountedSequence("g.0", 0, 1.0, 1.0, ((0, 7, count),)),),
        columns={**dict.fromkeys(names, zeros), "flags": flags, **given},
    )


def written(tmp_path: Path, tokens: StepTokens) -> StepTokens:
    TokenWriter(tmp_path).write(1, tokens)
    found = read_tokens(tmp_path, 1)
    assert found is not None
    return found


def test_a_step_is_read_as_it_was_written(tmp_path: Path) -> None:
    tokens = step_tokens(advantage=[1.0, -1 / 3, 1e-9], entropy=[0.5, 0.0, 11.0])
    found = written(tmp_path, tokens)
    assert found.about() == tokens.about()
    assert np.array_equal(found.columns["advantage"], tokens.columns["advantage"]), "not rounded"
    assert np.array_equal(found.columns["entropy"], tokens.columns["entropy"])
    assert found.columns["flags"].tolist() == [3, 3, 3]


def test_a_distance_of_logprobs_loses_a_relative_half_in_a_thousand(tmp_path: Path) -> None:
    distances = [0.01234567, -0.00012345, -17.654321]
    found = written(tmp_path, step_tokens(proximal_minus_behaviour=distances))
    assert found.columns["proximal_minus_behaviour"] == pytest.approx(distances, rel=2**-11)


def test_what_is_not_finite_stays_what_it_was(tmp_path: Path) -> None:
    odd = [NAN, -INF, 1e9]
    found = written(tmp_path, step_tokens(loss=odd, log_weight=odd))
    for name in ("loss", "log_weight"):
        assert np.array_equal(found.columns[name], [NAN, -INF, INF], equal_nan=True)


def test_a_column_that_others_give_is_left_out_and_read_all_the_same(tmp_path: Path) -> None:
    moved, away = [0.25, 0.0, -0.5], [0.5, 0.125, 0.0]
    found = written(
        tmp_path,
        step_tokens(
            proximal_minus_behaviour=away,
            train_minus_proximal=moved,
            log_ratio=moved,
            log_weight=away,
        ),
    )
    with np.load(file_of(tmp_path, 1)) as file:
        assert not {"log_ratio", "log_weight"} & {*file}
    assert found.columns["log_ratio"].tolist() == moved
    assert found.columns["log_weight"].tolist() == away
    assert found.columns["train_minus_behaviour"].tolist() == [0.75, 0.125, -0.5]


def test_a_token_takes_about_seven_bytes(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    count = 20_000

    def noise(scale: float) -> list[float]:
        return list(generator.normal(scale=scale, size=count))

    advantages = np.repeat(generator.normal(size=count // 200), 200).tolist()
    tokens = step_tokens(
        count,
        advantage=advantages,
        proximal_minus_behaviour=noise(0.01),
        entropy=[abs(value) for value in noise(1.0)],
        loss=noise(1.0),
    )
    TokenWriter(tmp_path).write(1, tokens)
    assert file_of(tmp_path, 1).stat().st_size / count < 7


def test_an_empty_step_is_a_step(tmp_path: Path) -> None:
    empty = StepTokens(0, (), (), (), {"flags": np.zeros(0, np.uint8)})
    found = written(tmp_path, empty)
    assert (found.num_tokens, found.spans("g.0"), found.sequences) == (0, [], ())


def test_a_record_of_an_earlier_version_has_whole_updates() -> None:
    about = step_tokens().about()
    for minibatch in about["minibatches"]:
        del minibatch["share"]
    assert [m.share for m in StepTokens.of(about, {}).minibatches] == [1.0]


def test_the_oldest_steps_go_when_their_room_is_used_up(tmp_path: Path) -> None:
    TokenWriter(tmp_path).write(1, step_tokens())
    size = file_of(tmp_path, 1).stat().st_size
    writer = TokenWriter(tmp_path, keep_bytes=2.5 * size)
    for step in (2, 3, 4):
        writer.write(step, step_tokens())
    assert steps_in(tmp_path) == [3, 4]


def test_the_newest_step_stays_even_if_it_is_larger_than_the_room(tmp_path: Path) -> None:
    writer = TokenWriter(tmp_path, keep_bytes=1)
    writer.write(1, step_tokens())
    writer.write(2, step_tokens())
    assert steps_in(tmp_path) == [2]


def test_no_room_at_all_writes_nothing(tmp_path: Path) -> None:
    TokenWriter(tmp_path / "tokens", keep_bytes=0).write(1, step_tokens())
    assert not (tmp_path / "tokens").exists()


def test_a_run_that_goes_on_forgets_the_steps_that_it_takes_again(tmp_path: Path) -> None:
    writer = TokenWriter(tmp_path)
    for step in (1, 2, 3):
        writer.write(step, step_tokens())
    (tmp_path / ".step-000004.npz.99.tmp").write_bytes(b"PK")  # of a process that was killed
    writer.forget_after(1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000001.npz"]


def test_a_step_that_is_taken_again_replaces_its_record(tmp_path: Path) -> None:
    writer = TokenWriter(tmp_path)
    writer.write(1, step_tokens(advantage=[1.0, 1.0, 1.0]))
    writer.write(1, step_tokens(advantage=[2.0, 2.0, 2.0]))
    found = read_tokens(tmp_path, 1)
    assert found is not None
    assert found.columns["advantage"].tolist() == [2.0, 2.0, 2.0]
    assert [path.name for path in tmp_path.iterdir()] == ["step-000001.npz"]


def test_a_missing_step_is_none_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    assert read_tokens(tmp_path, 1) is None
    for damage in (b"", b"PK", b"no archive"):
        file_of(tmp_path, 1).write_bytes(damage)
        with pytest.raises(StorageError, match=r"step-000001\.npz is damaged"):
            read_tokens(tmp_path, 1)
