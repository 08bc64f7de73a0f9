"""Short problems of Python, to try a model, an agent or this plugin with."""

from collections.abc import Iterator

from areal_sdk import Task

_PROBLEMS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("double", "the double of the number x", ("double(2) == 4", "double(-7) == -14")),
    ("is_even", "whether the integer n is even", ("is_even(4) is True", "is_even(7) is False")),
    ("largest", "the largest number of the list xs", ("largest([3, 9, 2]) == 9", "largest([-5]) == -5")),
    ("reverse", "the text s backwards", ("reverse('abc') == 'cba'", "reverse('') == ''")),
    ("count_vowels", "the number of vowels in the text s", ("count_vowels('banana') == 3", "count_vowels('Sky') == 0")),
    ("factorial", "the factorial of n", ("factorial(0) == 1", "factorial(5) == 120")),
    ("unique", "the items of the list xs without repeats, in their order", ("unique([1, 2, 1, 3]) == [1, 2, 3]", "unique([]) == []")),
    ("is_palindrome", "whether the text s reads the same backwards", ("is_palindrome('level') is True", "is_palindrome('ab') is False")),
    ("sum_of_squares", "the sum of the squares of the list xs", ("sum_of_squares([1, 2, 3]) == 14", "sum_of_squares([]) == 0")),
    ("fibonacci", "the n-th Fibonacci number, where fibonacci(0) is 0 and fibonacci(1) is 1", ("fibonacci(7) == 13", "fibonacci(0) == 0")),
    ("word_count", "a dict from each word of the text s to the number of times it occurs", ("word_count('a b a') == {'a': 2, 'b': 1}", "word_count('') == {}")),
    ("clamp", "the number x, but at least low and at most high; the arguments are x, low, high", ("clamp(5, 1, 3) == 3", "clamp(-1, 0, 9) == 0")),
    ("gcd", "the greatest common divisor of a and b", ("gcd(12, 18) == 6", "gcd(7, 3) == 1")),
    ("flatten", "one list with the items of the lists in xss", ("flatten([[1], [2, 3]]) == [1, 2, 3]", "flatten([]) == []")),
    ("is_prime", "whether the integer n is a prime", ("is_prime(7) is True", "is_prime(9) is False", "is_prime(1) is False")),
    ("second_largest", "the second largest of the distinct numbers in xs", ("second_largest([3, 9, 9, 2]) == 3", "second_largest([1, 2]) == 1")),
    ("caesar", "the lower-case text s with each letter moved n places on in the alphabet; the arguments are s, n", ("caesar('abz', 1) == 'bca'", "caesar('a b', 2) == 'c d'")),
    ("transpose", "the transpose of the matrix rows, a list of lists", ("transpose([[1, 2], [3, 4]]) == [[1, 3], [2, 4]]", "transpose([[1, 2]]) == [[1], [2]]")),
    ("binary", "the integer n >= 0 in binary digits, as text", ("binary(5) == '101'", "binary(0) == '0'")),
    ("balanced", "whether the brackets ( and ) of the text s are balanced", ("balanced('(())') is True", "balanced(')(') is False")),
)  # fmt: skip

EVAL_EVERY = 4
"""Number of problems of which one is held out."""


def tasks(split: str) -> Iterator[Task]:
    """The problems of `split`, `train` or `eval`: `question`, `entry_point` and `tests`."""
    for number, (name, result, tests) in enumerate(_PROBLEMS):
        is_held_out = number % EVAL_EVERY == EVAL_EVERY - 1
        if split == ("eval" if is_held_out else "train"):
            question = f"Write a Python function {name} that returns {result}."
            data = {
                "question": question,
                "entry_point": name,
                "tests": [f"assert {test}" for test in tests],
            }
            yield Task(f"python-{name}", data)
