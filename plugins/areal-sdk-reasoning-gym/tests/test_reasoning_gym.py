"""The families keep the contracts, whatever the options and the answers are."""

import subprocess
import sys
from collections import Counter

import pytest

from areal_sdk import ConfigError, Task
from areal_sdk.testing import (
    check_environment,
    check_plugin,
    check_reward,
    make_episode,
    registered,
    run_agent,
)

pytest.importorskip("reasoning_gym", reason="pip install reasoning-gym (233 MB with what it needs)")

from areal_sdk.environment import is_held_out
from areal_sdk_reasoning_gym.dataset import tasks
from areal_sdk_reasoning_gym.environment import ReasoningGym
from areal_sdk_reasoning_gym.families import family_names, has_level
from areal_sdk_reasoning_gym.rewards import reasoning_gym
from areal_sdk_reasoning_gym.scoring import ACCEPTED, FORMS

# The library's copy of ARC leaves its file open.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")

WITHOUT_AN_ANSWER = {"boxnet", "graph_color", "rubiks_cube", "rush_hour"}
"""Families that check a solution and know none."""
SLOW = {"knight_swap"}
"""A question of it may take seconds to make."""
EVALUATED = set(ACCEPTED) - {"letter_jumble", "spell_backward", "word_sorting"}
"""Families whose answers the library evaluates as Python."""
NONSENSE = (
    "",
    "\x00\ud800 x",
    "la " * 3000,
    "[" * 3000,
    "{not json",
    "nan",
    "1/0",
    "None",
    "{}",
    "0",
)


def one_task(family: str, **options: object) -> Task:
    return next(tasks("train", families=family, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("family", sorted(set(family_names()) - SLOW))
def test_a_family_scores_its_own_answer_and_survives_nonsense(family: str) -> None:
    task = one_task(family)
    for text in NONSENSE:
        verdict = reasoning_gym(make_episode(text, data=task.data))
        assert verdict.reward is not None
        assert 0.0 <= verdict.reward < 1.0 or float(text) == float(task.data["answer"])
    if family not in WITHOUT_AN_ANSWER:
        verdict = reasoning_gym(make_episode(task.data["answer"], data=task.data))
        assert (verdict.reward, verdict.success) == (1.0, True)
    else:
        assert task.data["answer"] is None


@pytest.mark.parametrize(
    ("family", "wrong"),
    [
        ("coin_flip", "0"),
        ("complex_arithmetic", "nan"),
        ("game_of_life_halting", "I do not know"),
        ("puzzle24", "24"),
        ("puzzle24", "4 * 3 * 2 * 1"),
        ("gsm_symbolic", "-{answer}"),
        ("time_intervals", "-{answer}"),
        ("spell_backward", "{answer} and more"),
        ("simple_integration", "Integral({integrand}, {variable})"),
        ("intermediate_integration", "Integral({integrand}, {variable})"),
        ("intermediate_integration", "integrate({integrand}, {variable})"),
    ],
)
def test_what_the_library_takes_for_right_by_mistake_is_wrong(family: str, wrong: str) -> None:
    for task in tasks("train", families=family, count=8):
        said = wrong.format(**{**task.data["metadata"], "answer": task.data["answer"]})
        assert reasoning_gym(make_episode(said, data=task.data)).success is False
        if "Integral" in str(task.data["answer"]):
            continue  # the library could not solve its own question
        right = make_episode(task.data["answer"], data=task.data)
        assert reasoning_gym(right).success is True


@pytest.mark.parametrize("family", sorted({*ACCEPTED, *FORMS}))
def test_right_answers_of_guarded_families_stay_right(family: str) -> None:
    solved = [
        task
        for task in tasks("train", families=family, count=26)
        if "Integral" not in task.data["answer"]  # the library could not solve its own question
    ]
    assert len(solved) >= 20
    for task in solved[:20]:
        verdict = reasoning_gym(make_episode(task.data["answer"], data=task.data))
        assert (verdict.reward, verdict.success) == (1.0, True)


@pytest.mark.parametrize("family", sorted(EVALUATED))
@pytest.mark.parametrize(
    "wrong",
    [
        'exec("import areal_sdk_reasoning_gym.rewards as m; m._score = lambda said, episode: 1.0")',
        "[c for c in ().__class__.__base__.__subclasses__()]",
        "[print(1)]",
        "x.__class__",
        "9**9**9",
        "(((9**50)**50)**50)**50",
        "factorial(9999999)",
        "1e-999999999",
        "True - 1e999",
        "1 if x else 2, 3",
    ],
)
def test_an_answer_is_never_run_as_code(family: str, wrong: str) -> None:
    before = one_task("gcd")
    assert reasoning_gym(make_episode(wrong, data=one_task(family).data)).reward == 0.0
    assert reasoning_gym(make_episode("no idea", data=before.data)).reward == 0.0


def test_an_integral_that_the_library_left_unsolved_can_be_solved() -> None:
    task = next(
        task
        for task in tasks("train", families="intermediate_integration", count=60)
        if task.data["answer"] == "-2*Integral(x*sin(2*x), x) + C"
    )
    solved = "x*cos(2*x) - sin(2*x)/2 + C"
    assert reasoning_gym(make_episode(solved, data=task.data)).success is True
    assert reasoning_gym(make_episode(task.data["answer"], data=task.data)).reward == 0.0


def test_a_list_keeps_its_partial_credit() -> None:
    task = one_task("binary_matrix")
    rows = [[int(number) for number in row.split()] for row in task.data["answer"].split("\n")]
    assert reasoning_gym(make_episode(str(rows), data=task.data)).reward == 0.1


@pytest.mark.parametrize(
    ("family", "forms"),
    [
        ("knights_knaves", ("not {}", "{} or not", "x {}", "{} {}", "{}\nx")),
        ("kakurasu", ("{} no", "it is {}", "{}2", "{}!")),
        ("fraction_simplification", ("{} or 1/3", "{}\n7", "{} x", "not {}")),
        ("advanced_geometry", ("{}, 77", "{} x", "x {}", "({}, 3, 4)")),
        ("letter_jumble", ("{} x", "{}\nx y", "x {}")),
        ("word_sorting", ("{}, x", "{}, x, y")),
        ("polynomial_equations", ("{}, x", "x, {}", "{} x", "none, {}")),
        ("quantum_lock", ("{} x", "or {}", "{}!")),
        ("sokoban", ("{} x", "not {}", "{}!")),
        ("survo", ("{} x", "x {}", "{}\nx")),
        ("time_intervals", ("{}, 77", "{} x", "x {}", "{}, {}")),
        ("gsm_symbolic", ("{} or 7", "7 or {}", "{}, 8", "{} 9")),
        ("coin_flip", ("{} x", "x {}", "{}, 1")),
    ],
)
def test_a_right_answer_with_something_around_it_has_not_the_full_score(
    family: str, forms: tuple[str, ...]
) -> None:
    for task in tasks("train", families=family, count=8):
        answer = task.data["answer"]
        assert reasoning_gym(make_episode(answer, data=task.data)).reward == 1.0
        for form in forms:
            verdict = reasoning_gym(make_episode(form.format(answer, answer), data=task.data))
            assert verdict.reward is not None
            assert (verdict.reward < 0.999, verdict.success) == (True, False), form


@pytest.mark.parametrize(
    ("said", "reward"),
    [("", 1.0), ('""', 1.0), ("none", 0.0), ("I do not know", 0.0), ("x, y", 0.0)],
)
def test_chatter_is_no_answer_to_an_equation_without_a_solution(said: str, reward: float) -> None:
    data = {**one_task("polynomial_equations").data, "answer": ""}
    assert reasoning_gym(make_episode(said, data=data)).reward == reward


@pytest.mark.parametrize("said", ["1e999999999", "1e-999999999", "9" * 9999, "1/" + "9" * 9999])
def test_a_number_of_any_size_is_read_at_once(said: str) -> None:
    assert reasoning_gym(make_episode(said, data=one_task("coin_flip").data)).reward == 0.0


def test_a_family_that_cannot_be_scored_is_refused_and_not_among_all() -> None:
    assert "propositional_logic" not in family_names()
    with pytest.raises(ConfigError, match=r"cannot be scored: .*: leave the family out"):
        one_task("propositional_logic")
    data = {"question": "?", "answer": None, "family": "propositional_logic", "parameters": {}}
    with pytest.raises(ConfigError, match="cannot be scored"):
        reasoning_gym(make_episode("P", data={**data, "metadata": {}}))


def test_answers_may_stand_in_tags() -> None:
    task = one_task("chain_sum")
    right = f"so it is <answer> {task.data['answer']}\n</answer>."
    verdict = reasoning_gym(make_episode(right, data=task.data), needs_tags=True)
    assert verdict.success
    bare = make_episode(task.data["answer"], data=task.data)
    assert reasoning_gym(bare, needs_tags=True).reward == 0.0


def test_partial_credit_can_be_left_out() -> None:
    task = one_task("spell_backward")
    near = make_episode(task.data["answer"][:-1] + "~", data=task.data)
    partial = reasoning_gym(near).reward
    assert partial is not None
    assert 0.0 < partial < 1.0
    assert reasoning_gym(near, partial_credit=False).reward == 0.0


def test_a_broken_task_is_an_error_and_no_zero() -> None:
    task = one_task("gcd")
    with pytest.raises(ValueError, match="'no_such_family' not registered"):
        reasoning_gym(make_episode("2", data={**task.data, "family": "no_such_family"}))
    with pytest.raises(ValueError, match="judges tasks of the dataset reasoning_gym"):
        reasoning_gym(make_episode("4", data={"question": "2+2?"}))


def test_no_option_brings_a_held_out_question_into_training() -> None:
    """One digit: so few questions that another seed meets the same ones."""
    small = {"chain_sum": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}}

    def questions(split: str, seed: int) -> set[str]:
        drawn = tasks(split, families="chain_sum", config=small, seed=seed, eval_count=300)
        return {task.data["question"] for task in drawn}

    train = questions("train", 0) | questions("train", 1)
    held_out = questions("eval", 0) | questions("eval", 2)
    assert len(train) > 100
    assert len(held_out) > 20
    assert not train & held_out
    assert all(is_held_out(question, 0.2) for question in held_out)


def test_tasks_do_not_depend_on_their_number_nor_on_the_process() -> None:
    few = list(tasks("train", families=["gcd", "maze", "acre", "list_functions"], count=20))
    more = list(tasks("train", families=["gcd", "maze", "acre", "list_functions"], count=40))
    assert few == more[:20]
    program = (
        "from areal_sdk_reasoning_gym.dataset import tasks\n"
        "made = tasks('train', families=['gcd', 'maze', 'acre', 'list_functions'], count=20)\n"
        "print([task.data['question'] for task in made] == {}, end='')\n"
    )
    questions = [task.data["question"] for task in few]
    for hash_seed in ("1", "2"):
        said = subprocess.run(
            [sys.executable, "-c", program.format(repr(questions))],
            env={"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
            text=True,
        )
        assert said.stdout == "True"


def test_a_mixture_has_its_shares_and_names_its_families() -> None:
    mixed = list(tasks("train", families=["gcd", "lcm"], weights={"gcd": 3.0}, count=400))
    sources = Counter(task.source for task in mixed)
    assert 270 < sources["gcd"] < 330
    assert sources["gcd"] + sources["lcm"] == 400


def test_a_level_makes_questions_harder_and_parameters_go_over_it() -> None:
    easy, hard = (one_task("chain_sum", difficulty=level).data["parameters"] for level in (0, 3))
    assert easy["max_terms"] < hard["max_terms"]
    config = {"chain_sum": {"max_terms": 2, "min_terms": 2}}
    assert one_task("chain_sum", difficulty=3, config=config).data["parameters"]["max_terms"] == 2
    by_name = one_task("chain_sum", difficulty={"chain_sum": 3}).data["parameters"]
    assert by_name == hard


def test_a_level_of_all_families_takes_those_that_have_it() -> None:
    with_level = {family for family in family_names() if has_level(family, 0)}
    assert len(with_level) > 90
    assert {"acre", "gsm_symbolic"}.isdisjoint(with_level)
    drawn = tasks("train", difficulty=0, count=3)
    assert {task.data["family"] for task in drawn} <= with_level


def test_a_level_that_the_library_contradicts_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="refuses the parameters of caesar_cipher"):
        one_task("caesar_cipher", difficulty=2)
    repaired = {"caesar_cipher": {"max_rotation": 25}}
    assert one_task("caesar_cipher", difficulty=2, config=repaired).data["answer"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"families": "gdc"}, "reasoning-gym has no 'gdc'; it has ab, acre"),
        ({"families": []}, 'name at least one, or "all"'),
        ({"families": ["gcd", "gcd"]}, "a name stands twice"),
        ({"families": "gcd", "difficulty": 99}, "gcd has the levels 0 to"),
        ({"families": "acre", "difficulty": 1}, "no levels for acre"),
        ({"families": "gcd", "weights": {"lcm": 1.0}}, "'lcm' is not among the families"),
        ({"families": "gcd", "difficulty": {"lcm": 1}}, "'lcm' is not among the families"),
        ({"families": "gcd", "config": {"lcm": {}}}, "'lcm' is not among the families"),
        ({"families": "gcd", "weights": {"gcd": 0.0}}, "one of them above"),
        ({"families": "gcd", "config": {"gcd": {"max": 1}}}, "no parameter 'max'; known: "),
        (
            {"families": "gcd", "config": {"gcd": {"min_numbers": 0}}},
            "refuses the parameters of gcd",
        ),
        ({"families": "gcd", "held_out": 1.0}, "a share between 0 and 1"),
        ({"families": "gcd", "held_out": 1e-12}, "leave the family out"),
    ],
)
def test_a_wrong_option_is_refused_with_its_cure(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        next(tasks("eval", **options))  # type: ignore[arg-type]


async def test_the_environment_asks_and_the_reward_judges() -> None:
    task = one_task("gcd")
    answer = f"<answer>{task.data['answer']}</answer>"
    (step,) = await check_environment(ReasoningGym, task, replies=[answer])
    assert (step.reward, step.done) == (None, True)
    await check_reward(reasoning_gym, [make_episode(answer, data=task.data)])
    episode = await run_agent(ReasoningGym, task, engine=[answer], reward=reasoning_gym)
    assert (episode.reward, episode.outcome.success) == (1.0, True)
    asked = str(episode.messages[0]["content"])
    assert asked.startswith(task.data["question"])
    assert "between <answer> and </answer>" in asked


async def test_the_installed_plugin_keeps_every_contract() -> None:
    options = {"tasks.reasoning_gym": {"families": ["gcd", "chain_sum"], "count": 30}}
    assert next(iter(registered("dataset", "reasoning_gym", families="gcd")("eval"))).data
    assert "reward 'reasoning_gym'" in await check_plugin(
        "areal-sdk-reasoning-gym", options=options
    )
