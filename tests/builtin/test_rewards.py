"""Built-in rewards score what the model said; a task without an answer is an error, not a zero."""

import pytest

from areal_sdk.builtin.number import last_number
from areal_sdk.builtin.rewards import contains_answer, exact_match, numeric_match
from areal_sdk.types import Episode, Outcome, Task, Turn


def episode(text: str | None, **data: object) -> Episode:
    turn = Turn((1,), (), (), (), message={"role": "assistant", "content": text})
    return Episode("e", Task("t", data), (turn,), Outcome.abstained())


def test_exact_match_compares_the_whole_text() -> None:
    assert exact_match(episode(" 42\n", answer=42)) == 1.0
    assert exact_match(episode("42.", answer="42")) == 0.0
    assert exact_match(episode("Yes", answer="yes")) == 0.0
    assert exact_match(episode("Yes", answer="yes"), ignore_case=True) == 1.0


def test_contains_answer_wants_a_word_of_its_own() -> None:
    assert contains_answer(episode("It is Paris, of course", answer="paris")) == 1.0
    assert contains_answer(episode("142", answer="42")) == 0.0
    assert contains_answer(episode("f(x) = x + 1.", answer="x + 1")) == 1.0


@pytest.mark.parametrize(
    ("text", "answer", "reward"),
    [
        ("so 3 + 4 = 7", 7, 1.0),
        ("1,234.50", "1234.5", 1.0),
        ("it is 1/2", 0.5, 1.0),
        ("-3", 3, 0.0),
        ("7 or 8", 7, 0.0),
        ("no idea", 7, 0.0),
        ("1/0", 7, 0.0),
        ("5e-1", "0.5", 1.0),
        (None, 7, 0.0),
        ("1,2,3", 123, 0.0),
        ("1,2,3", 3, 1.0),
        ("12,34", 1234, 0.0),
        ("1,234,567", 1234567, 1.0),
        ("1,234,56", 123456, 0.0),
        ("(1,234)", 1234, 1.0),
        ("\u22125", -5, 1.0),
        ("\u22125", 5, 0.0),
        ("5", "\u22125", 0.0),
        ("1/2.5", 0.4, 1.0),
        ("1e999999999", 7, 0.0),
        ("1e999999999/2", 7, 0.0),
        ("9" * 5000 + "/3", 7, 0.0),
        (".", 7, 0.0),
        ("0/0", 7, 0.0),
        ("it costs -$5", -5, 1.0),
        ("it costs -$5", 5, 0.0),
        ("-\\$1,234.50", -1234.5, 1.0),
        ("from $3 to $5", 5, 1.0),
        ("1 / 2", 0.5, 1.0),
        ("1 / 2", 2, 0.0),
        ("1/-2", -2, 0.0),
        ("1/-2", -0.5, 1.0),
        ("1/-0", 7, 0.0),
        ("3-$5", 5, 1.0),
    ],
)
def test_numeric_match_reads_the_last_number(
    text: str | None, answer: object, reward: float
) -> None:
    assert numeric_match(episode(text, answer=answer)) == reward


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2^10", 1024),
        ("$2^{10}$", 1024),
        ("10^{-3}", 0.001),
        ("10^\u22123", 0.001),
        ("3 x 10^5", 300_000),
        ("3x10^5", 300_000),
        ("3 \\times 10^{5}", 300_000),
        ("-1.5 * 10^2", -150),
        ("-2^2", -4),
        ("\\frac{1}{2}", 0.5),
        ("-\\dfrac{3}{4}", -0.75),
        ("x = 2 and 3 + 4 = 7", 7),
        ("2 * 3 = **6**", 6),
        ("step 2 *42*", 42),
        ("**42**", 42),
        ("60 km/h", 60),
        ("5!", 5),
        ("$5!$", None),
        ("\\left(5\\right)", 5),
        ("\\left(\\frac{1}{2}\\right)", 0.5),
        ("_5_", 5),
        ("__-5__", -5),
        ("5 million", 5_000_000),
        ("-2.5 millions", -2_500_000),
        ("1/2 million", None),
        ("8 \u00f7 2", None),
        ("10 \\div 2", None),
        ("\\pm 5", None),
        ("12 \\mod 5", None),
        ("50%", 50),
        ("5 kg", 5),
        ("10,000^2", 1e8),
        ("1/2x", None),
        ("2x", None),
        ("x^2", None),
        ("e^{2}", None),
        ("x_{12}", None),
        ("1 1/2", None),
        ("1\\frac{1}{2}", None),
        ("1/2/3", None),
        ("2 * 3", None),
        ("2*3", None),
        ("2**10", None),
        ("3 x 4", None),
        ("3+4", None),
        ("(1+2)/3", None),
        ("2\\pi", None),
        ("2\u03c0", None),
        ("\\sqrt{2}", None),
        ("\u221a2", None),
        ("10\u2075", None),
        ("2^x", None),
        ("2^3^2", None),
        ("10^999999", None),
        ("0^-1", None),
        ("0x10", None),
        ("0x1F", None),
    ],
)
def test_a_power_is_read_and_a_part_of_an_expression_is_no_number(
    text: str, value: float | None
) -> None:
    assert last_number(text) == (None if value is None else pytest.approx(value))
    assert last_number(f"The answer is {text}.") == last_number(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("- 5", -5),
        ("\u20135", -5),
        ("2^0.5", None),
        ("2^(10)", 1024),
        ("10^(-3)", 0.001),
        ("\\frac{-1}{2}", -0.5),
        ("\\frac12", 0.5),
        ("-\\frac{-1}{2}", None),
        ("\\boxed{\\frac{-1}{2}}", -0.5),
        ("\\frac{\\sqrt{3}}{2}", None),
        ("\\frac{x}{2}", None),
        ("\\frac{2}{x}", None),
        ("\\frac{n+1}{2}", None),
        ("1 000", 1000),
        ("1 000 000", 1_000_000),
        ("\\boxed{1{,}000}", 1000),
        ("10,\\!000", 10_000),
        ("1\\,000", 1000),
        ("10 - 4", None),
        ("10-4", None),
        ("10 \u2013 4", None),
        ("x - 3", None),
        ("x - 3 = 5", 5),
        ("x + 3", None),
        ("3 + x", None),
        ("2x+3", None),
        ("2 - \\sqrt{3}", None),
        ("2i", None),
        ("2 pi", None),
        ("1\u00bd", None),
        ("0.\\overline{3}", None),
        ("sin(30)", None),
        ("log_2(8)", None),
        ("log_2 8", None),
        ("log_2(8) = 3", 3),
        ("25 cm^2", 25),
        ("25\\text{ cm}^2", 25),
        ("5 m^{2}", 5),
        ("9.8 m/s^2", 9.8),
        ("90^\\circ", 90),
        ("\\boxed{5}", 5),
        ("x = 5", 5),
        ("x = -5", -5),
        ("**12** apples", 12),
        ("so she has $1,234.50 left", 1234.5),
        ("3 apples:\n- 42", 42),
        ("60 m/s", 60),
        ("5m", 5),
        ("42 - a good number", 42),
        ("x_1=5, x_2=7", 7),
    ],
)
def test_how_people_and_models_write_numbers(text: str, value: float | None) -> None:
    assert last_number(text) == (None if value is None else pytest.approx(value))
    assert last_number(f"The answer is {text}.") == last_number(text)


@pytest.mark.parametrize(
    "answer",
    [
        "2x+3",
        "x - 3",
        "10-4",
        "x = 5",
        "about 5",
        "5 of 12 apples, 3 left",
        "\\frac{\\sqrt{3}}{2}",
        "\\frac{\\pi}{2}",
        "2 - \\sqrt{3}",
    ],
)
def test_an_answer_in_the_data_that_is_not_wholly_a_number_is_an_error(answer: str) -> None:
    with pytest.raises(ValueError, match="is not a number"):
        numeric_match(episode("3", answer=answer))


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("1{,}000", "1000"),
        ("3 000", "3000"),
        ("$\\boxed{\\frac{-1}{2}}$", "-0.5"),
        ("2^(10)", "1024"),
        ("5 m^2", "5"),
        ("50\\%", "50"),
        ("$18.00", "18"),
        ("25\\text{ cm}^2", "25"),
        ("60 km/h.", "60"),
        ("(-5)", "-5"),
        (1e-7, "1e-7"),
    ],
)
def test_an_answer_in_the_data_may_have_a_unit(answer: object, text: str) -> None:
    assert numeric_match(episode(text, answer=answer)) == 1.0


def test_a_long_text_is_read_in_linear_time() -> None:
    for piece in (
        "1 ",
        "2^",
        "1/",
        "1,",
        "10^{",
        "frac{1}{",
        "* ",
        "9" * 50,
        "1 000 ",
        "\\frac{",
        "- ",
        " ^",
        "5 m^",
    ):
        last_number(piece * 20_000)


@pytest.mark.parametrize(
    ("text", "answer", "tolerance", "reward"),
    [
        ("110", 100, 0.1, 1.0),
        ("111", 100, 0.1, 0.0),
        ("0", 0.05, 0.05, 0.0),
        ("0.01", 0.05, 0.05, 0.0),
        ("0", "1e-7", 1e-6, 0.0),
        ("1e-7", 0, 1e-6, 1.0),
        ("0.2", 0, 0.1, 0.0),
        ("-105", -100, 0.05, 1.0),
        ("3", 3, 0.0, 1.0),
    ],
)
def test_a_tolerance_is_a_part_of_the_answer(
    text: str, answer: object, tolerance: float, reward: float
) -> None:
    assert numeric_match(episode(text, answer=answer), tolerance=tolerance) == reward


def test_a_task_without_an_answer_is_an_error() -> None:
    for reward in (exact_match, contains_answer, numeric_match):
        with pytest.raises(ValueError, match=r"no data\['answer'\] .* it has: question"):
            reward(episode("42", question="?"))
        with pytest.raises(ValueError, match=r"no data\['answer'\]"):
            reward(episode("", answer=" "))  # saying nothing is not right
    with pytest.raises(ValueError, match="is not a number"):
        numeric_match(episode("42", answer="many"))


@pytest.mark.parametrize("answer", ["1,2,3", "3, 4", "(1.5,2)", "12,34"])
def test_a_list_as_the_answer_is_an_error_and_not_its_last_number(answer: str) -> None:
    with pytest.raises(ValueError, match=r"is a list, .* take the reward exact_match"):
        numeric_match(episode("3", answer=answer))


@pytest.mark.parametrize("answer", ["1e999999999", "1/0"])
def test_an_answer_without_a_finite_number_is_an_error(answer: str) -> None:
    with pytest.raises(ValueError, match="is not a number"):
        numeric_match(episode("3", answer=answer))


def test_another_field_can_hold_the_answer() -> None:
    assert exact_match(episode("42", solution="42"), field="solution") == 1.0
