"""The example of own traffic records a better model, imitates it, and practises on the recordings."""

from pathlib import Path

import pytest

from areal_sdk.process.user_code import load_user_module

EXAMPLE = Path(__file__).parents[2] / "examples" / "online" / "own_traffic.py"


async def test_the_better_model_is_recorded_with_its_thumbs(tmp_path: Path) -> None:
    module = load_user_module(EXAMPLE)
    await module.record(tmp_path, num_customers=12)
    await module.choose(tmp_path)
    good = (tmp_path / "good.jsonl").read_text().splitlines()
    left_out = (tmp_path / "book.jsonl").read_text().splitlines()
    assert good
    assert left_out
    assert len(good) + len(left_out) == 12
    assert all('"name":"look"' in row for row in good), "with the tool's definition and its calls"


@pytest.mark.long
async def test_a_model_imitates_the_recording_and_practises_on_it(tmp_path: Path) -> None:
    before, imitated, practised = await load_user_module(EXAMPLE).main("tiny", tmp_path)
    assert before["success"] <= 0.02
    assert imitated["success"] >= 0.08  # measured: 0.24 [0.15, 0.36]
    # Ten steps of practice change little for a model this small, but may not undo what it has learnt:
    # docs/own-traffic.md has the figures.
    assert practised["success"] >= 0.08
    assert practised["left"] < 0.4
