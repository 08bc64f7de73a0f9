"""The live view fits its terminal, and is plain lines where there is none."""

import contextlib
import io
import os
import re
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from areal_sdk.telemetry.ledger import DropReason, Ledger
from areal_sdk.telemetry.live.terminal import (
    RunStatus,
    TerminalView,
    curve,
    plain_line,
    render,
    still_line,
)


def books() -> dict[str, object]:
    ledger = Ledger()
    ledger.start(40)
    ledger.buffer(30)
    ledger.train(16)
    ledger.drop(DropReason.STALE, 2)
    ledger.drop(DropReason.ERROR_AGENT, 1)
    return ledger.snapshot()


STATE = RunStatus(
    name="calculator on SmolLM2",
    step=12,
    total_steps=50,
    version=12,
    elapsed_s=95.0,
    train_s=75.0,
    rewards=(0.1, None, 0.2, 0.5, 0.9),
    success_before=0.38,
    success=0.81,
    success_step=10,
    metrics={"batch/staleness": 0.7, "batch/staleness_max": 2.0},
    sampled_per_s=321.0,
    trained_per_s=1234.0,
    ledger=books(),
    waits=[{"name": "trainer: step 13", "waited_s": 3.2, "timeout_s": 600.0}],
)


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_the_view_tells_the_whole_story() -> None:
    progress, reward, speed, episodes, waits = render(STATE, width=100)
    assert re.fullmatch(
        r"calculator on SmolLM2  step 12/50 ━{5}─{15}  24%  1:35, 3:58 left", progress
    )
    assert reward == "reward    0.900 ▁▂▅█   success 0.38 -> 0.81 at step 10"
    assert (
        speed == "tokens/s  321 sampled, 1,234 trained   staleness 0.7 mean, 2 max, at version 12"
    )
    assert episodes == (
        "episodes  16 trained, 14 buffered, 7 running, 3 dropped (stale 2, error_agent 1)"
    )
    assert waits == "waits for trainer: step 13, 3 s of 600 s"


THROTTLED = {"name": "a slot", "waited_s": 9, "timeout_s": 99, "is_throttle": True}


def test_rollouts_that_are_held_back_are_told_in_words_and_only_where_nothing_else_waits() -> None:
    assert render(replace(STATE, waits=[THROTTLED]))[-1] == (
        "rollouts are ahead, waiting for the trainer, 9 s"
    )
    assert render(replace(STATE, waits=[THROTTLED, *STATE.waits]))[-1] == (
        "waits for trainer: step 13, 3 s of 600 s; 1 other wait"
    )


def test_shares_that_a_curriculum_moves_have_a_line() -> None:
    shares = {"batch/source/easy/share": 0.25, "batch/source/hard/share": 0.75}
    lines = render(replace(STATE, metrics={**STATE.metrics, **shares}))
    assert lines[3] == "shares    easy 25 %, hard 75 %"


def test_what_was_measured_before_training_is_told_once() -> None:
    before = replace(STATE, success_before=0.38, success=0.38, success_step=0)
    assert render(before)[1] == "reward    0.900 ▁▂▅█   success 0.38 at step 0"


def test_a_line_whose_episodes_are_all_trained_says_nothing_of_others() -> None:
    ledger = Ledger()
    ledger.start(8)
    ledger.buffer(8)
    ledger.train(8)
    assert "trained 8 of 8 episodes  1:35" in plain_line(replace(STATE, ledger=ledger.snapshot()))


def test_a_long_silence_is_ended_by_what_the_run_does() -> None:
    assert still_line(replace(STATE, note="evaluating step-12: 3 of 9")) == (
        "step 12/50  evaluating step-12: 3 of 9  waits for trainer: step 13, 3 s of 600 s  1:35"
    )
    assert still_line(replace(STATE, waits=())) == "step 12/50  40 episodes started, 14 wait  1:35"


def test_a_run_that_has_just_begun_shows_only_what_it_knows() -> None:
    assert render(RunStatus(name="agent")) == ["agent  step 0  0:00"]


@given(st.integers(0, 120), st.booleans(), st.booleans())
def test_no_line_is_wider_than_the_terminal(width: int, color: bool, unicode: bool) -> None:
    for line in render(STATE, width=width, color=color, unicode=unicode):
        assert len(re.sub(r"\x1b\[\d*m", "", line)) <= width
        assert unicode or line.isascii()


@given(st.lists(st.none() | st.floats(), max_size=200), st.integers(1, 40))
def test_the_curve_fits_and_survives_any_numbers(values: list[float | None], width: int) -> None:
    finite = [v for v in values if v is not None and abs(v) < 1e300]
    assert len(curve(finite, width=width)) == min(len(finite), width)


def test_a_state_survives_its_file() -> None:
    import orjson

    back = RunStatus.from_json(orjson.loads(orjson.dumps({**STATE.as_json(), "newer": 1})))
    assert render(back) == render(STATE)


def test_a_terminal_is_repainted_in_place() -> None:
    terminal = Terminal()
    writer = TerminalView(terminal, environ={"NO_COLOR": "1"})
    writer.update(STATE)
    writer.update(STATE)
    writer.message("checkpoint saved")
    writer.close()
    text = terminal.getvalue()
    assert text.count("\x1b[5F\x1b[J") == 2
    assert text.endswith("\x1b[5F\x1b[Jcheckpoint saved\n")
    assert "\x1b[32m" not in text


def test_colors_are_used_unless_refused() -> None:
    terminal = Terminal()
    TerminalView(terminal, environ={}).update(STATE)
    assert "\x1b[32m" in terminal.getvalue()


def test_a_pipe_gets_one_plain_line_a_step() -> None:
    pipe = io.StringIO()
    writer = TerminalView(pipe, environ={})
    writer.update(STATE)
    writer.update(STATE)
    writer.message("saved → disk")
    assert pipe.getvalue() == (
        "step 12/50  reward 0.900  staleness 0.7 (max 2)  321 tok/s  "
        "trained 16 of 40 episodes (14 buffered, 7 running, 3 dropped)  1:35\nsaved ? disk\n"
    )


def test_a_run_goes_on_when_nobody_reads_its_output_any_more() -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stream:
        view = TerminalView(stream, environ={})
        os.close(reader)
        view.message("step 1 is saved")
        view.update(STATE)
        with contextlib.suppress(BrokenPipeError):
            stream.close()


def test_a_name_cannot_steer_the_terminal() -> None:
    state = RunStatus(name="evil\x1b[2J\rname", note="\x07")
    assert "\x1b" not in "".join(render(state))
    assert "\r" not in plain_line(state)


def test_a_wait_without_an_end_shows_none() -> None:
    wait = {
        "name": "rollouts: the 8 episodes of step 5",
        "waited_s": 30,
        "timeout_s": 365 * 86400.0,
    }
    assert "waits for rollouts: the 8 episodes of step 5, 30 s  " in still_line(
        replace(STATE, waits=[wait])
    )


def test_long_deadlines_are_told_in_minutes_and_hours() -> None:
    wait = {"name": "engine: start", "waited_s": 30.4, "timeout_s": 5537.62}
    told = render(replace(STATE, waits=[wait, wait, wait]))[-1]
    assert told == "waits for engine: start, 30 s of 92 min; 2 other waits"
