"""A report whose quotes are held against the record: what is verbatim passes, and what is not is named."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from view_runs import evaluate

from areal_sdk_view.command import view

TURN = "#run/guess-1/episode/train-2.0"


@pytest.fixture
def report(tmp_path: Path) -> Path:
    return tmp_path / "report.md"


def check(report: Path, runs: Path, text: str) -> Result:
    report.write_text(text, encoding="utf-8")
    return CliRunner().invoke(view, [str(runs), "--check-report", str(report)])


RIGHT = f"""# What went wrong

The answer is right, and no reward is given:

> The answer
> is 20.

[train-2.0, the last turn](http://127.0.0.1:5000/{TURN}?turn=1)

> hm 0
> — [its thought]({TURN}?turn=0)

> {{"by": 0}}
[the call as it was sent]({TURN}?turn=0)

> What is 2 […] ten?
[the question]({TURN})

> ␛[31mred␛[0m ␦gnirts
[an attack, copied from the page](#run/guess-1/episode/train-2.3?turn=1)

> agent: KeyError <script>
[the error](#run/guess-1/episode/bad)

See also [a step on](#run/guess-2/episode/train-3.1).

```
> a quote in code is none
```
"""


def test_quotes_that_are_in_the_record_pass(report: Path, runs: Path) -> None:
    result = check(report, runs, RIGHT)
    assert result.exit_code == 0, result.output
    assert result.output == f"{report}: 6 quotes, all of them in the record\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            f"\n> The answer is 21.\n[it]({TURN}?turn=1)",
            "2: not in turn 1 of train-2.0: 'The answer is 21.'",
        ),
        (
            f"> The answer is 20.\n[it]({TURN}?turn=0)",
            "1: not in turn 0 of train-2.0, but in turn 1: 'The answer is 20.'",
        ),
        (f"> the answer is 20.\n[it]({TURN})", "1: not in episode train-2.0: 'the answer is 20.'"),
        (f"> ten? […] What is\n[it]({TURN})", "1: not in episode train-2.0: 'ten? […] What is'"),
        (f"> The answer is 20.\n\n\n[too far]({TURN})", "1: a quote without a link to its episode"),
        (f"> […]\n[it]({TURN})", "1: an empty quote"),
        (
            "> yes\n[it](#run/guess-1/episode/nobody)",
            "2: no episode 'nobody' in run 'guess-1'",
        ),
        ("> yes\n[it](#run/guess-9/episode/train-2.0)", "2: no run 'guess-9'"),
        ("words\n\n[it](#run/guess-1/episode/nobody)", "3: no episode 'nobody' in run 'guess-1'"),
    ],
)
def test_a_quote_that_is_not_in_the_record_is_named_with_its_line(
    report: Path, runs: Path, text: str, problem: str
) -> None:
    result = check(report, runs, f"{text}\n\n> What is 2 times ten?\n[it]({TURN})\n")
    assert result.exit_code == 1
    assert result.output.splitlines() == [
        f"{report}:{problem}",
        f"{report}: 1 problem; {'2 quotes' if '>' in text else '1 quote'} checked",
    ]


def test_a_report_without_quotes_does_not_pass(report: Path, runs: Path) -> None:
    result = check(report, runs, "All is well.\n")
    assert result.exit_code == 1
    assert "no quote" in result.output


def test_a_report_that_is_not_there_is_named(report: Path, runs: Path) -> None:
    result = CliRunner().invoke(view, [str(runs), "--check-report", str(report)])
    assert f"cannot read the report {report}" in str(result.exception)


def test_ids_of_any_form_are_named_as_the_page_names_them(report: Path, runs: Path) -> None:
    evaluate(runs / "guess-1", step=6, rewards={"ä b/c": [1]})
    text = "> ä b/c?\n[it](#run/guess-1/episode/step-6.%C3%A4%20b%2Fc.0)\n"
    assert check(report, runs, text).exit_code == 0
