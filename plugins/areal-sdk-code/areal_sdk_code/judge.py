"""Runs a program against tests, so that the program cannot write its own verdict.

The program and the tests are in sandboxes of their own. Between them travel arguments and plain return
values. The program never sees what the tests expect, and the tests' process alone says what passed.
"""

import asyncio
import json
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from importlib.resources import files
from typing import Any

from areal_sdk_sandbox import Isolation, Limits, Sandbox, SandboxEnd

_INSIDE = files("areal_sdk_code.inside")
_MARGIN_S = 5.0
"""Seconds that the tests' process may take beyond those of the program that it waits for."""
_LEAST_S = 0.01
"""Fewest seconds that a program gets, also when its time is used up."""
_TESTS_MEMORY_MB = 1024
_MESSAGE_CHARACTERS = 300
_DECIMAL = re.compile(
    r"[-+]?(?:\d{1,400}(?:\.\d{0,400})?|\.\d{1,400})(?:[eE][-+]?\d{1,4})?", re.ASCII
)
_LEADING_ZERO = re.compile(r"[-+]?0\d")
_TEST_TYPES = ("stdin", "functional")
"""Types of tests in LiveCodeBench."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of the tests of a program."""

    num_tests: int
    num_passed: int
    message: str
    """The reason why the first failing test failed; empty if all passed."""
    limit: str = ""
    """The limit that ended the program, such as `memory`."""

    @property
    def passed(self) -> bool:
        return self.num_passed == self.num_tests


class Judge:
    """Judges programs under the same limits."""

    def __init__(self, limits: Limits, *, isolation: Isolation = "auto") -> None:
        self._limits = limits
        self._isolation = isolation
        self._sandbox = Sandbox(limits, isolation=isolation)
        more = replace(limits, wall_s=limits.wall_s + _MARGIN_S, memory_mb=_TESTS_MEMORY_MB)
        self._tests_sandbox = Sandbox(more, isolation=isolation)

    async def is_isolated(self) -> bool:
        return await self._sandbox.is_isolated()

    async def judge(
        self,
        code: str,
        tests: object,
        *,
        setup: str = "",
        entry_points: Sequence[str] = (),
        stops_early: bool = False,
    ) -> Verdict:
        """The verdict. ValueError for tests that cannot be run, whatever the program.

        `stops_early`: tests of input and output end with the first that fails. After a limit none is run.
        """
        listed = read_tests(tests)
        if all(isinstance(test, Mapping) and "output" in test for test in listed):
            return await self._judge_output(code, listed, stops_early)
        if any(isinstance(test, Mapping) for test in listed) and not entry_points:
            raise ValueError(
                "tests with args need an entry_point: the name of the function, or Solution().name "
                "(LiveCodeBench has it as func_name in its metadata)"
            )
        return await self._judge_calls(code, listed, setup, entry_points)

    async def _judge_output(
        self, code: str, tests: Sequence[Mapping[str, Any]], stops_early: bool
    ) -> Verdict:
        num_passed, first, limit = 0, "", ""
        wall_s, cpu_s = self._limits.wall_s, self._limits.cpu_s  # for all tests together
        source = {"solution.py": _bytes_of(code)}
        for number, test in enumerate(tests):
            stdin = str(test.get("input", "")).encode()
            left = replace(self._limits, wall_s=wall_s, cpu_s=cpu_s)
            sandbox = Sandbox(left, isolation=self._isolation)
            end = await sandbox.run(["python3", "-I", "solution.py"], stdin=stdin, files=source)
            wall_s, cpu_s = max(wall_s - end.seconds, _LEAST_S), max(cpu_s - end.cpu_s, _LEAST_S)
            problem = _wrong_output(end, str(test["output"]))
            num_passed += not problem
            if problem:
                first = first or f"test {number}: {problem}"
                limit = limit or _limit_of(end)
            if problem and (stops_early or end.limit):
                break
        return Verdict(len(tests), num_passed, first, limit)

    async def _judge_calls(
        self, code: str, tests: Sequence[Any], setup: str, entry_points: Sequence[str]
    ) -> Verdict:
        order = {"tests": list(tests), "setup": setup, "entry_points": list(entry_points)}
        options = ["usual_names"] if any(map(_is_functional, tests)) else []
        ours, theirs = socket.socketpair()
        solution = asyncio.create_task(self._run_solution(code, theirs, options))
        try:
            said = await self._run_tests(json.dumps(order).encode(), ours)
            end = await solution
        finally:
            solution.cancel()
            await asyncio.gather(solution, return_exceptions=True)
            ours.close()  # each sandbox closes its end; one that never began did not
            theirs.close()
        if end.limit:
            said["problem"] = str(end)
        if said["data_error"]:
            raise ValueError(said["data_error"])
        results = said["results"]
        failures = [f"test {n}: {why}" for n, why in enumerate(results) if why]
        first = (failures or [said["problem"]])[0]
        limit = _limit_of(end) or ("memory" if "MemoryError" in first else "")
        return Verdict(len(tests), len(results) - len(failures), first[:_MESSAGE_CHARACTERS], limit)

    async def _run_solution(
        self, code: str, channel: socket.socket, options: Sequence[str]
    ) -> SandboxEnd:
        source = {
            "solution.py": _bytes_of(code),
            "wire.py": _script("wire"),
            "main.py": _script("solution"),
        }
        with channel:
            words = ["python3", "-I", "main.py", str(channel.fileno()), *options]
            return await self._sandbox.run(words, files=source, pass_fds=[channel.fileno()])

    async def _run_tests(self, order: bytes, channel: socket.socket) -> dict[str, Any]:
        scripts = {"wire.py": _script("wire"), "main.py": _script("tests")}
        with channel:
            words = ["python3", "-I", "main.py", str(channel.fileno())]
            end = await self._tests_sandbox.run(
                words, stdin=order, files=scripts, pass_fds=[channel.fileno()]
            )
        try:
            said: dict[str, Any] = json.loads(end.stdout)
        except ValueError:
            last = end.stderr[-_MESSAGE_CHARACTERS:].decode(errors="replace").strip()
            problem = f"the tests gave no verdict: {end}{': ' if last else ''}{last}"
            return {"results": [], "problem": problem, "data_error": ""}
        return said


def read_tests(tests: object) -> Sequence[Any]:
    """The tests of a task as a list of code, or of mappings; ValueError for anything else."""
    if isinstance(tests, str):
        try:
            parsed = json.loads(tests)
        except ValueError:
            return [tests]
        tests = parsed if isinstance(parsed, list) else [tests]
    if not isinstance(tests, Sequence) or not tests:
        raise ValueError(f"tests must be code or a list with at least one test, not {tests!r:.80}")
    tests = [_of_function(test) if _is_functional(test) else test for test in tests]
    for test in tests:
        is_known = isinstance(test, Mapping) and ("output" in test or "expected" in test)
        if not isinstance(test, str) and not is_known:
            raise ValueError(
                f"test {test!r:.80}: give code, an object with input and output, or one with args and "
                "expected"
            )
        if isinstance(test, Mapping) and test.get("testtype", "stdin") not in _TEST_TYPES:
            raise ValueError(
                f"testtype {test['testtype']!r}: known are {' and '.join(_TEST_TYPES)}"
            )
    kinds = {
        "code" if isinstance(test, str) else "output" if "output" in test else "call"
        for test in tests
    }
    if "output" in kinds and len(kinds) > 1:
        raise ValueError("tests of input and output stand alone: other tests call functions")
    return tests


def _is_functional(test: object) -> bool:
    return isinstance(test, Mapping) and test.get("testtype") == "functional"


def _of_function(test: Mapping[str, Any]) -> Mapping[str, Any]:
    """A test of LiveCodeBench: its input has a JSON value in each line, and its output is one."""
    try:
        lines = [line for line in str(test["input"]).splitlines() if line.strip()]
        args, expected = [json.loads(line) for line in lines], json.loads(test["output"])
    except (KeyError, TypeError, ValueError) as exc:
        raise ValueError(
            f"test {test!r:.80}: testtype functional needs an input with a JSON value in each line and an "
            f"output of JSON ({type(exc).__name__}: {exc}): set testtype to stdin if a program is tested"
        ) from None
    return {"args": args, "expected": expected, "testtype": "functional"}


def _wrong_output(end: SandboxEnd, expected: str) -> str:
    """Empty if the program wrote what was expected; spaces at the ends of lines do not count.

    A line of numbers is compared by value, as LiveCodeBench does: 2.50 is 2.5, and 2.4999 is not. Where a
    number with a leading zero is expected, such as 0010, it must be written so.
    """
    if end.limit:
        return str(end)
    if not end.ok:
        last = end.stderr.decode(errors="replace").strip().splitlines()
        return f"{end}{f': {last[-1]}' if last else ''}"[:_MESSAGE_CHARACTERS]
    written = _lines(end.stdout.decode(errors="replace"))
    wanted = _lines(expected)
    if len(written) == len(wanted) and all(map(_is_same_line, written, wanted)):
        return ""
    return f"it wrote {chr(10).join(written)!r:.100}, not {expected!r:.100}"


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _is_same_line(written: str, wanted: str) -> bool:
    """Whether two lines of output are equal, with numbers compared as numbers.

    >>> _is_same_line("2.50 1", "2.5 1.0"), _is_same_line("2.51", "2.5"), _is_same_line("v1.0", "v1")
    (True, False, False)
    >>> _is_same_line("10", "0010"), _is_same_line("10 0.50", "0010 0.5"), _is_same_line("0010 .5", "0010 0.5")
    (False, False, True)
    """
    if written == wanted:
        return True
    words = [written.split(), wanted.split()]
    if not all(_DECIMAL.fullmatch(word) for line in words for word in line):
        return False
    return len(words[0]) == len(words[1]) and all(map(_is_same_number, *words))


def _is_same_number(written: str, wanted: str) -> bool:
    """A number with a leading zero, such as 0010, is text that has digits: a code or a row of bits."""
    return written == wanted or (
        not _LEADING_ZERO.match(wanted) and Decimal(written) == Decimal(wanted)
    )


def _limit_of(end: SandboxEnd) -> str:
    """The limit that the program met. A refused allocation is one too: Python says so at the end."""
    if end.limit:
        return end.limit
    return "memory" if end.stderr.rstrip().endswith(b"MemoryError") else ""


def _bytes_of(code: str) -> bytes:
    return code.encode(errors="replace")  # half a character that a model sampled is a question mark


def _script(name: str) -> bytes:
    return (_INSIDE / f"{name}.py").read_bytes()
