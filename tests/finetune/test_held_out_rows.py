"""Held-out rows that are trained too are told: their loss measures memory."""

from areal_sdk.finetune.rendering import Dataset
from areal_sdk.finetune.training import _held_out
from areal_sdk.trainer import Demonstration


def rows(*last: int) -> Dataset[Demonstration]:
    return Dataset([Demonstration((1, token), (False, True)) for token in last])


def test_held_out_rows_that_are_trained_too_are_counted() -> None:
    assert _held_out(None, rows(2)) == ()
    assert _held_out(rows(5), rows(2, 3)) == ("held out: 1 row",)
    (told,) = _held_out(rows(2, 5), rows(2, 3))
    assert told == "held out: 2 rows, of which 1 are trained too: they measure memory"
