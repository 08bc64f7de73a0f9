"""The flight record holds the last minutes, in a file of fixed size."""

from pathlib import Path

from areal_sdk.telemetry.live.flight import NUM_SLOTS, SLOT, FlightRecorder, read_flight
from areal_sdk.telemetry.live.terminal import RunStatus


def test_the_newest_rows_are_kept_in_a_file_of_fixed_size(tmp_path: Path) -> None:
    path = tmp_path / "flight.jsonl"
    recorder = FlightRecorder(path)
    for step in range(NUM_SLOTS + 10):
        recorder.note(RunStatus(step=step), {})
    recorder.close()
    assert [row["step"] for row in read_flight(tmp_path)] == [*range(10, NUM_SLOTS + 10)]
    assert path.stat().st_size == SLOT * NUM_SLOTS


def test_a_long_row_leaves_out_parts_and_stays_whole(tmp_path: Path) -> None:
    path = tmp_path / "flight.jsonl"
    recorder = FlightRecorder(path)
    processes = {f"agent-{number}": [1.5, 200.0] for number in range(200)}
    recorder.note(RunStatus(step=3), {"processes": processes}, ended="an error")
    recorder.close()
    (row,) = read_flight(tmp_path)
    assert (row["step"], row["ended"], "processes" in row) == (3, "an error", False)


def test_a_row_that_is_torn_hides_no_other(tmp_path: Path) -> None:
    path = tmp_path / "flight.jsonl"
    recorder = FlightRecorder(path)
    for step in (1, 2, 3):
        recorder.note(RunStatus(step=step), {})
    recorder.close()
    with path.open("r+b") as file:
        file.seek(SLOT)
        file.write(b"\0" * 40)
    assert [row["step"] for row in read_flight(tmp_path)] == [1, 3]


def test_lines_that_the_user_is_told_come_with_the_next_row(tmp_path: Path) -> None:
    path = tmp_path / "flight.jsonl"
    recorder = FlightRecorder(path)
    recorder.note(RunStatus(), {})
    recorder.hear("warning: the engine died")
    recorder.note(RunStatus(), {})
    recorder.note(RunStatus(), {})
    recorder.close()
    assert [row["said"] for row in read_flight(tmp_path)] == [[], ["warning: the engine died"], []]


def test_a_run_goes_on_without_a_record_that_cannot_be_written(tmp_path: Path) -> None:
    recorder = FlightRecorder(tmp_path / "nowhere" / "flight.jsonl")
    recorder.note(RunStatus(), {})
    recorder.close()
    assert read_flight(tmp_path / "nowhere") == []
