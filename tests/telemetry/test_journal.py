"""The journal of open episodes: what is written comes back exactly, or is named."""

import logging
import math
from dataclasses import replace
from pathlib import Path

import pytest

from areal_sdk.telemetry.journal import Answer, EpisodeKey, Journal
from areal_sdk.types import FinishReason, Turn

KEY = EpisodeKey(0, "task", 1)


def answer(*versions: int, before: tuple[int, Turn] | None = None) -> Answer:
    """An answer of one token a version."""
    place, turn = before or (None, None)
    made = Turn(
        new_tokens=(1, 2, 3),
        output_tokens=tuple(range(10, 10 + len(versions))),
        logprobs=tuple(-0.1 / (1 + n) for n in range(len(versions))),
        versions=versions,
        finish_reason=FinishReason.LENGTH,
        num_shared=0 if turn is None else turn.num_tokens,
        shares_with=place,
        _before=turn,
    )
    return Answer("how", made, "stop\n", ({7: -0.5, 8: -math.inf},))


def written(directory: Path, *answers: Answer, key: EpisodeKey = KEY) -> Path:
    journal = Journal(directory)
    journal.start()
    for number, one in enumerate(answers):
        assert journal.keep(key, one, number == 0)
    journal.close()
    return directory / f"{key.stem}.log"


def restored(directory: Path, *, version: int, max_staleness: int = 2) -> list[Answer]:
    journal = Journal(directory)
    journal.start()
    journal.restore(version=version, max_staleness=max_staleness)
    answers = journal.read(KEY) if journal.is_recorded(KEY) else []
    journal.close()
    return answers


def test_answers_come_back_exactly(tmp_path: Path) -> None:
    first = answer(0, 1)
    second = answer(1, before=(0, first.turn))
    unknown = replace(first, turn=replace(first.turn, logprobs=(math.nan, -1e-7)))
    path = written(tmp_path, first, second, unknown)
    assert path.stat().st_mode & 0o077 == 0
    *found, last = restored(tmp_path, version=1)
    assert found == [first, second]
    assert found[1].turn.prompt_tokens == (1, 2, 3, 10, 11, 1, 2, 3)
    assert math.isnan(last.turn.logprobs[0])
    assert last.turn.logprobs[1] == -1e-7


def test_a_torn_line_counts_as_never_written(tmp_path: Path) -> None:
    path = written(tmp_path, answer(0), answer(0))
    path.write_bytes(path.read_bytes()[:-1])
    assert restored(tmp_path, version=0) == [answer(0)]
    assert path.read_bytes().endswith(b"\n")  # so the next answer has a line of its own


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (b'"output":[10', b'"output":[11', "line 2 does not have its checksum"),
        (b'"task":"task"', b'"task":"tusk"', "line 1 does not have its checksum"),
    ],
)
def test_a_damaged_record_is_named_and_its_episode_begins_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, old: bytes, new: bytes, why: str
) -> None:
    path = written(tmp_path, answer(0), answer(0))
    path.write_bytes(path.read_bytes().replace(old, new, 1))
    with caplog.at_level(logging.WARNING):
        assert restored(tmp_path, version=0) == []
    assert f"{path} is damaged ({why}): its episode begins anew" in caplog.text
    assert not path.exists()


@pytest.mark.parametrize(
    ("versions", "found"),
    [
        (((3,), (4,)), ((3,), (4,))),  # of the checkpoint, and before
        (((4, 5), (6,)), ((4, 3), (2,))),  # lost: as far from version 4 on another way
        (((4,), (7,), (4,)), ((4,),)),  # too far: from there on it is sampled
        (((1,),), ()),
    ],
)
def test_a_lost_version_counts_as_as_many_updates_before_the_checkpoint(
    tmp_path: Path, versions: tuple[tuple[int, ...], ...], found: tuple[tuple[int, ...], ...]
) -> None:
    written(tmp_path, *(answer(*one) for one in versions))
    for _ in range(2):  # the second time nothing is lost any more
        after = restored(tmp_path, version=4)
        assert tuple(one.turn.versions for one in after) == found


def test_the_records_of_a_consumed_task_go(tmp_path: Path) -> None:
    kept = written(tmp_path, answer(0), key=EpisodeKey(1, "task", 0))
    gone = [written(tmp_path, answer(0), key=EpisodeKey(0, "task", n)) for n in range(3)]
    journal = Journal(tmp_path)
    journal.start()
    journal.forget((0, "task"))
    journal.close()
    assert kept.exists()
    assert not any(path.exists() for path in gone)


def test_a_full_disk_ends_the_journal_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = Journal(tmp_path / "open")
    journal.start()
    (tmp_path / "open").rmdir()  # a write fails, as it would on a full disk
    with caplog.at_level(logging.WARNING):
        journal.keep(KEY, answer(0), True)
        journal.close()
    assert "the answers of open episodes are kept no longer" in caplog.text
    assert not journal.keep(KEY, answer(0), True)
