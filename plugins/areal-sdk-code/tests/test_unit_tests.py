"""Right programs pass, wrong ones fail, and no program writes its own verdict."""

import inspect
import json
from functools import partial

import pytest
from forgeries import FORGERIES, METHOD_FORGERIES, TOLD_TOO_LATE

from areal_sdk.testing import check_reward, make_episode, registered
from areal_sdk_code.judge import Judge, _is_same_line, read_tests
from areal_sdk_code.problems import tasks as problems
from areal_sdk_code.rewards import unit_tests
from areal_sdk_sandbox import Isolation, Limits, SandboxError, why_not_isolated

NO_BUBBLEWRAP = why_not_isolated()
STRONGEST: Isolation = "rlimits" if NO_BUBBLEWRAP else "bubblewrap"
needs_bubblewrap = pytest.mark.skipif(
    bool(NO_BUBBLEWRAP), reason=NO_BUBBLEWRAP or "bubblewrap runs"
)
both = pytest.mark.parametrize(
    "isolation", ["rlimits", pytest.param("bubblewrap", marks=needs_bubblewrap)]
)
LIMITS = Limits(wall_s=120.0, cpu_s=5.0, memory_mb=300)
TESTS = ["assert double(2) == 4", "assert double(7) == 14"]
SOLUTION = "Here it is:\n```python\ndef double(x):\n    return 2 * x\n```"


@both
async def test_a_right_program_passes(isolation: Isolation) -> None:
    verdict = await Judge(LIMITS, isolation=isolation).judge("double = lambda x: x + x", TESTS)
    assert verdict.passed, verdict


@pytest.mark.parametrize("name", FORGERIES)
async def test_a_verdict_cannot_be_forged(name: str) -> None:
    if name == "reads_the_tests" and NO_BUBBLEWRAP:
        pytest.skip("limits alone let a program read every file: needs bubblewrap")
    verdict = await Judge(LIMITS, isolation=STRONGEST).judge(FORGERIES[name], TESTS)
    assert verdict.num_passed == 0
    assert verdict.message


@pytest.mark.parametrize("name", METHOD_FORGERIES)
async def test_a_method_of_an_object_is_not_told_what_is_expected(name: str) -> None:
    code, test = METHOD_FORGERIES[name]
    with pytest.raises(ValueError, match="tell the program what is expected: compare with =="):
        await Judge(LIMITS, isolation=STRONGEST).judge(code, [test])


@pytest.mark.parametrize("name", TOLD_TOO_LATE)
async def test_a_class_made_from_a_plain_one_answers_as_the_plain_one(name: str) -> None:
    code, test = TOLD_TOO_LATE[name]
    verdict = await Judge(LIMITS, isolation=STRONGEST).judge(code, [test])
    assert verdict.num_passed == 0
    assert verdict.message


@pytest.mark.parametrize(
    ("code", "test"),
    [
        (
            "import enum, collections, datetime\nclass C(str, enum.Enum):\n  RED = 'red'\n"
            "P = collections.namedtuple('P', 'x y')\nday = datetime.datetime(2024, 2, 29)\n"
            "def f(x): return [C.RED, P(1, 2), collections.deque([1]), day, range(2), collections.Counter(x)]",
            "import collections\nred, p, d, day, r, c = f('aab')\nassert red == 'red' and red.startswith('r')\n"
            "assert p.x == 1 and p == (1, 2) and d == collections.deque([1])\nassert day.month == 2\n"
            "assert list(r) == [0, 1] and c.most_common(1) == [('a', 2)]",
        ),
        (
            "class Cache:\n  def __init__(self, size): self.items = {}\n"
            "  def put(self, key, value): self.items[key] = value\n"
            "  def get(self, key): return self.items.get(key, -1)\n"
            "  @classmethod\n  def of(cls, **items):\n    self = cls(9); self.items |= items; return self\n",
            "c = Cache(2)\nc.put(1, 5)\nassert c.get(1) == 5 and c.get(2) == -1\nassert Cache.of(a=3).get('a') == 3",
        ),
        (
            "def f(x):\n  class Box:\n    def upper(self): return 'A'\n    def opened(self, n): return n + 1\n"
            "  return Box()",
            "assert f(1).upper() == 'A' and f(1).opened(3) == 4",
        ),
        ("def f(n): return lambda x: x + n", "assert f(1)(2) == 3"),
        ("def f(x): x.append(3); x[0] = [9]", "a = [1]\nf(a)\nassert a == [[9], 3]"),
        ("def f(x): x['b'] = x.pop('a')", "a = {'a': 1}\nf(a)\nassert a == {'b': 1}"),
        ("def f(n):\n  for i in range(n): yield i", "assert list(f(3)) == [0, 1, 2]"),
        ("def f(n): return {(1, 2): {3}, b'x': 1j}", "assert f(0) == {(1, 2): {3}, b'x': 1j}"),
        ("def f(x): return x ** 200", "assert f(10) == 10 ** 200"),
        ("def f(x): return float('nan')", "assert math.isnan(f(1))"),
        ("def f(): raise KeyError('k')", "try:\n  f()\nexcept KeyError: pass\nelse: assert False"),
        ("def bisect(x): return x", "assert bisect(1) == 1"),
        (
            "def f(x): return x",
            "import collections\nassert f(collections.Counter('aab')) == {'a': 2, 'b': 1}",
        ),
        (
            "import numpy as np\ndef f(): return np.arange(3) * np.float32(2)",
            "assert f() == [0, 2, 4]",
        ),
        (
            "class Stack:\n  def __init__(self, *items): self.items = list(items)\n"
            "  def push(self, item): self.items.append(item); return self\n"
            "  def __len__(self): return len(self.items)\n"
            "  def __eq__(self, other): return self.items == other.items\n"
            "  def __repr__(self): return f'Stack{self.items}'\n",
            "s = Stack()\nassert not s\nassert len(s.push(1).push(2)) == 2\nassert s.items == [1, 2]\n"
            "assert repr(s) == 'Stack[1, 2]'\nassert s == Stack(1, 2)\nassert s != Stack(1) and s != 5",
        ),
        ("def even(x): return x % 2 == 0", "assert [x for x in range(5) if even(x)] == [0, 2, 4]"),
    ],
)
async def test_what_tests_do_in_one_process_works_between_two(code: str, test: str) -> None:
    verdict = await Judge(LIMITS, isolation=STRONGEST).judge(code, [test])
    assert verdict.passed, verdict


async def test_tests_in_the_form_of_humaneval_and_calls_and_output() -> None:
    judge = Judge(LIMITS, isolation=STRONGEST)
    check = "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(3) == 6"
    assert (await judge.judge("def g(x): return 2 * x", check, entry_points=["g"])).passed
    assert not (await judge.judge("def g(x): return 4", check, entry_points=["g"])).passed
    calls = [{"args": [[3, 1]], "expected": [1, 3]}, {"args": [[]], "expected": []}]
    assert (
        await judge.judge("def g(x): return tuple(sorted(x))", calls, entry_points=["g"])
    ).passed
    output = [{"input": "2\n3\n", "output": "5\n"}, {"input": "1\n1", "output": "2"}]
    added = await judge.judge("print(int(input()) + int(input()), ' ')", output)
    assert added.passed, added
    half = await judge.judge("input(); print(2)", output)
    assert (half.num_passed, half.message) == (1, "test 0: it wrote '2', not '5\\n'")


def live_code_bench(*tests: tuple[str, str], **data: object) -> dict[str, object]:
    """A row as LiveCodeBench has it, with tests of a function."""
    made = [{"input": given, "output": out, "testtype": "functional"} for given, out in tests]
    return {"tests": json.dumps(made), "metadata": '{"func_name": "twoSum"}', **data}


TWO_SUM = live_code_bench(("[2, 7, 11, 15]\n9", "[0, 1]"), ("[3, 3]\n6\n", "[0, 1]"))
RIGHT_TWO_SUM = """
class Solution:
    def twoSum(self, nums: List[int], target: int) -> List[int]:
        seen = defaultdict(list)
        for i, n in enumerate(nums):
            if seen[target - n]:
                return [seen[target - n][0], i]
            seen[n].append(i)
"""


async def test_functional_tests_of_live_code_bench_call_the_method_of_solution() -> None:
    reward = partial(unit_tests, isolation=STRONGEST)
    right = await reward(make_episode(RIGHT_TWO_SUM, data=TWO_SUM))
    assert (right.reward, right.message) == (1.0, "")
    function = "def twoSum(nums, target):\n    return (0, 1)"
    assert (await reward(make_episode(function, data=TWO_SUM))).reward == 1.0
    wrong = await reward(
        make_episode(RIGHT_TWO_SUM.replace("[0], i", "[0], 0"), data=TWO_SUM), fraction=True
    )
    assert (wrong.reward, wrong.message) == (
        0.0,
        "test 0: AssertionError: twoSum returned [0, 0], not [0, 1]",
    )
    reads = "print([0, 1])"
    assert (await reward(make_episode(reads, data=TWO_SUM))).reward == 0.0
    by_entry_point = live_code_bench(
        ("[3, 3]\n6", "[0, 1]"), metadata={}, entry_point="Solution().twoSum"
    )
    assert (await reward(make_episode(RIGHT_TWO_SUM, data=by_entry_point))).reward == 1.0


async def test_a_function_of_live_code_bench_may_shadow_a_usual_name() -> None:
    data = live_code_bench(("5\n3\n7", "6"), metadata={"func_name": "pow"})
    code = "class Solution:\n    def pow(self, x, n, mod): return pow(x, n, mod)"
    verdict = await unit_tests(make_episode(code, data=data), isolation=STRONGEST)
    assert verdict.reward == 1.0, verdict.message


async def test_stdin_tests_of_live_code_bench_run_the_program() -> None:
    tests = [{"input": "2\n", "output": "4\n", "testtype": "stdin"}]
    data = {"tests": json.dumps(tests), "metadata": "{}"}
    verdict = await unit_tests(make_episode("print(2 * int(input()))", data=data))
    assert verdict.reward == 1.0


async def test_a_check_may_be_given_a_method_of_solution() -> None:
    check = "def check(candidate):\n    assert candidate([3, 3], target=6) == [0, 1]"
    judge = Judge(LIMITS, isolation=STRONGEST)
    code = "from typing import List\nfrom collections import defaultdict\n" + RIGHT_TWO_SUM
    assert (await judge.judge(code, check, entry_points=["Solution().twoSum"])).passed
    assert not (await judge.judge("x = 1", check, entry_points=["Solution().twoSum"])).passed


async def test_keys_that_json_cannot_say_are_compared_as_json_writes_them() -> None:
    judge = Judge(LIMITS, isolation=STRONGEST)
    call = {"args": [[1, 1, 2]], "expected": json.loads('{"1": 2, "2": 1}')}
    for code, passes in (
        ("from collections import Counter\ndef f(x): return Counter(x)", True),
        ("def f(x): return {'1': 2, '2': 1}", True),
        ("def f(x): return {1: 2, 2: 2}", False),
        ("def f(x): return {1: 2, '1': 2, 2: 1}", False),
        ("def f(x): return {(1,): 2, 2: 1}", False),
    ):
        verdict = await judge.judge(code, [call], entry_points=["f"])
        assert verdict.passed is passes, (code, verdict.message)
    call = {"args": [0], "expected": {}}
    assert not (
        await judge.judge("def f(x): return {1: 1, '1': 1}", [call], entry_points=["f"])
    ).passed


ONLY_DEFINED = {
    "functions": "def test_a():\n    assert double(2) == 4\n",
    "an import": "from solution import double\ndef test_a():\n    assert double(2) == 4\n",
    "a star": "from solution import *\ndef test_a():\n    assert double(2) == 4\n",
    "a module": "import solution\ndef test_a():\n    assert solution.double(2) == 4\n",
    "a class": (
        "import unittest\nclass Cases(unittest.TestCase):\n    def setUp(self): self.two = 2\n"
        "    def test_a(self): self.assertEqual(double(self.two), 4)\n"
        "if __name__ == '__main__':\n    unittest.main()\n"
    ),
    "a constant": "from solution import TWO, double\ndef test_a():\n    assert double(TWO) == 4\n",
    "a helper": "def test_case(x, y):\n    assert double(x) == y\ntest_case(2, 4)\n",
}


@pytest.mark.parametrize("name", ONLY_DEFINED)
async def test_tests_that_are_only_defined_run(name: str) -> None:
    judge = Judge(LIMITS, isolation=STRONGEST)
    right = await judge.judge("TWO = 2\ndef double(x): return 2 * x", ONLY_DEFINED[name])
    assert right.passed, right
    for wrong in ("TWO = 2\ndef double(x): return 0", "nothing = 1"):
        verdict = await judge.judge(wrong, ONLY_DEFINED[name])
        assert verdict.num_passed == 0
        assert verdict.message


async def test_a_test_that_cannot_use_what_the_program_returned_has_failed() -> None:
    judge = Judge(LIMITS, isolation=STRONGEST)
    for test in ("assert abs(double(2) - 4) < 1", "for x in [double(2)][:0]: y = x\nassert y == 4"):
        verdict = await judge.judge("def double(x): pass", test, entry_points=["double"])
        assert verdict.num_passed == 0


async def test_in_compares_where_the_tests_are() -> None:
    judge = Judge(LIMITS, isolation=STRONGEST)
    test = "assert 3 in double(9) and 5 not in double(9)"
    form = "class A:\n  def __contains__(self, x): return x == 3\n  def __iter__(self): return iter({})"
    assert (await judge.judge(form.format([3]) + "\ndouble = lambda x: A()", test)).passed
    assert not (await judge.judge(form.format([9]) + "\ndouble = lambda x: A()", test)).passed
    no_items = "class A:\n  def __contains__(self, x): return x == 3\ndouble = lambda x: A()"
    with pytest.raises(ValueError, match="cannot be iterated over"):
        await judge.judge(no_items, test)


@both
@pytest.mark.parametrize(
    ("body", "limit"),
    [
        ("while True: pass", "cpu"),
        ("import time; time.sleep(99)", "wall"),
        ("x = bytearray(1 << 40)", "memory"),
        ("while True: print('x' * 9999)", "output"),
    ],
)
async def test_a_limit_is_the_programs_failure_and_is_named(
    isolation: Isolation, body: str, limit: str
) -> None:
    limits = Limits(wall_s=1.5 if limit == "wall" else 120.0, cpu_s=1.0, memory_mb=100)
    verdict = await Judge(limits, isolation=isolation).judge(f"def double(x):\n    {body}", TESTS)
    assert (verdict.num_passed, verdict.limit) == (0, limit)


async def test_inputs_share_the_time_of_a_program_and_none_is_run_after_it() -> None:
    tests = [{"input": str(n), "output": "1"} for n in range(50)]
    verdict = await Judge(Limits(wall_s=1.0), isolation=STRONGEST).judge(
        "import time\nprint(int(input()) + 1, flush=True)\ntime.sleep(0.4)", tests
    )
    assert verdict.num_passed <= 1
    assert verdict.limit == "wall"


def test_programs_that_compute_are_not_judged_many_at_once() -> None:
    assert not inspect.iscoroutinefunction(unit_tests)


async def test_the_reward_keeps_the_contract() -> None:
    good, bad = (
        make_episode(text, data={"tests": TESTS})
        for text in (SOLUTION, SOLUTION.replace("2 *", "7 +"))
    )
    verdicts = await check_reward(unit_tests, [good, bad])
    assert [v.reward for v in verdicts] == [1.0, 0.0]
    share = await unit_tests(bad, fraction=True)
    assert (share.reward, share.success, share.metrics["tests_passed"]) == (0.5, False, 0.5)
    assert "test 0: AssertionError" in share.message


@pytest.mark.parametrize(
    ("tests", "problem"),
    [
        ("assert (", "a test is no Python"),
        ([], "at least one test"),
        ([{"args": [1]}], "args and expected"),
        ([{"args": [1], "expected": 2}], "need an entry_point"),
        (["assert double(lambda: 1) == 4"], "a test passes a function"),
        ("def check(candidate): pass", "needs an entry_point"),
        ([{"output": "1"}, "assert True"], "stand alone"),
        ("", "calls nothing of the solution"),
        ("def check_solution(candidate):\n    assert candidate(2) == 4", "calls nothing of the"),
        ("async def test_a():\n    assert double(2) == 4", "test_a is async"),
        ("def test_a(x):\n    assert double(x) == 4", "test_a has parameters"),
        ("class TestA:\n    def test_a(self): assert double(2) == 4", "is no unittest.TestCase"),
        ("assert double(2) == 4\nimport nowhere_to_be_found", "fails by itself: ModuleNotFound"),
        (
            [{"input": "[1]\n2", "output": "3", "testtype": "functional"}],
            r"need an entry_point: .*func_name in its metadata",
        ),
        (
            [{"input": "2 3", "output": "3", "testtype": "functional"}],
            "testtype functional needs an input with a JSON value in each line",
        ),
        (
            [{"input": "2", "output": "3", "testtype": "graph"}],
            "'graph': known are stdin and functional",
        ),
        ("expected = {}['a']\nassert double(2) == expected", "fails by itself: KeyError"),
    ],
)
async def test_tests_that_cannot_run_are_an_error_and_not_a_zero(
    tests: object, problem: str
) -> None:
    episode = make_episode(SOLUTION, data={"tests": tests})
    with pytest.raises(ValueError, match=f"task 'task': .*{problem}"):
        await unit_tests(episode)


async def test_a_name_that_is_no_entry_point_is_an_error_and_not_a_zero() -> None:
    data = {"tests": "x = double(2)\nassert isclose(x, 4)", "entry_point": "double"}
    with pytest.raises(ValueError, match="uses 'isclose', which it does not define"):
        await unit_tests(make_episode(SOLUTION, data=data))


async def test_a_task_without_tests_is_an_error_and_not_a_zero() -> None:
    with pytest.raises(ValueError, match=r"no data\['tests'\]; it has: test"):
        await unit_tests(make_episode(SOLUTION, data={"test": TESTS}))


async def test_a_sandbox_that_cannot_start_is_a_fault_and_not_a_zero(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python3")
    with pytest.raises((SandboxError, OSError)):
        await unit_tests(make_episode(SOLUTION, data={"tests": TESTS}), isolation="rlimits")


def test_tests_as_text_may_be_code_or_json() -> None:
    assert read_tests("assert True") == ["assert True"]
    assert read_tests('[{"input": "1", "output": "2"}]') == [{"input": "1", "output": "2"}]


SOLUTIONS = """
double = lambda x: 2 * x
is_prime = lambda n: n > 1 and all(n % d for d in range(2, n))
is_even = lambda n: n % 2 == 0
largest = max
reverse = lambda s: s[::-1]
count_vowels = lambda s: sum(c in 'aeiouAEIOU' for c in s)
factorial = lambda n: 1 if n == 0 else n * factorial(n - 1)
unique = lambda xs: list(dict.fromkeys(xs))
is_palindrome = lambda s: s == s[::-1]
sum_of_squares = lambda xs: sum(x * x for x in xs)
fibonacci = lambda n: n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)
word_count = lambda s: {w: s.split().count(w) for w in s.split()}
clamp = lambda x, low, high: max(low, min(x, high))
gcd = __import__('math').gcd
flatten = lambda xss: [x for xs in xss for x in xs]
second_largest = lambda xs: sorted(set(xs))[-2]
caesar = lambda s, n: ''.join(c if c == ' ' else chr((ord(c) - 97 + n) % 26 + 97) for c in s)
transpose = lambda rows: [list(column) for column in zip(*rows)]
binary = lambda n: bin(n)[2:]
def balanced(s):
    depth = 0
    for c in s:
        depth += (c == '(') - (c == ')')
        if depth < 0: return False
    return depth == 0
"""


async def test_each_problem_of_the_dataset_can_be_solved() -> None:
    found = [*problems("train"), *problems("eval")]
    assert len({task.id for task in found}) == 20
    tests = [test for task in found for test in task.data["tests"]]
    names = [task.data["entry_point"] for task in found]
    verdict = await Judge(LIMITS, isolation=STRONGEST).judge(SOLUTIONS, tests, entry_points=names)
    assert verdict.passed, verdict


def test_the_plugin_is_installed() -> None:
    assert registered("reward", "unit_tests", memory_mb=100)
    assert registered("env", "python_tool", max_calls=2)()


@pytest.mark.parametrize(
    ("written", "wanted", "is_same"),
    [
        ("10", "0010", False),
        ("0010", "0010", True),
        ("1e2", "0100", False),
        ("7", "007", False),
        ("-7", "-07", False),
        ("10 0010", "10.0 0010", True),
        ("10 10", "10.0 0010", False),
        ("0", "-0", True),
        ("0.0", "0", True),
        (".5", "0.5", True),
        ("0", "00", False),
        ("1 2", "1", False),
        ("2.50", "2.5", True),
        ("0:10", "00:10", False),
    ],
)
def test_a_number_with_a_leading_zero_is_text(written: str, wanted: str, is_same: bool) -> None:
    assert _is_same_line(written, wanted) is is_same
