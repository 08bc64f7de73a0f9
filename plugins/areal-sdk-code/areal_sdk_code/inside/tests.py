"""The process of the tests: runs them against functions that live in the process of the solution.

A function of the solution is a `Remote` here. What it returns arrives as plain data of Python's own
types, so the solution can take no part in a comparison. The order comes on stdin and the verdict goes
to stdout, as JSON. What the tests print goes to stderr.
"""

import ast
import builtins
import collections
import datetime
import decimal
import fractions
import importlib
import importlib.util
import inspect
import json
import math
import os
import re
import sys
import types
from importlib.machinery import ModuleSpec
from typing import Any, NoReturn

sys.path.insert(0, os.getcwd())
import wire  # type: ignore[import-not-found]

_USUAL_NAMES = {"np": "numpy", "pd": "pandas"}
_METHOD = re.compile(r"(\w+)(?:\(\))?\.(\w+)")
"""An entry point such as `Solution().solve` or `Solution.solve`."""
_PLAIN_TYPES = (
    str, bytes, bytearray, int, float, complex, list, tuple, dict, set, frozenset, range,
    collections.Counter, collections.OrderedDict, collections.deque, decimal.Decimal, fractions.Fraction,
    datetime.datetime, datetime.time, datetime.timedelta,
)  # fmt: skip
_PLAIN_METHODS = {name for kind in _PLAIN_TYPES for name in dir(kind) if not name.startswith("_")}
_TOLERANCE = 1e-9
_MAX_MESSAGE = 300


class GoneError(BaseException):
    """The solution's process ended, or sent something that is not an answer. Tests must not catch it."""


class DataError(BaseException):
    """The tests themselves cannot run. Not the solution's fault."""


class Solution:
    """The process of the solution."""

    def __init__(self, descriptor: int) -> None:
        self._replies = os.fdopen(descriptor, "rb")
        self._requests = os.fdopen(os.dup(descriptor), "wb")
        self.num_asked = 0
        self.names: list[str] = []
        """The names that the solution defines and that can be called."""

    def receive(self) -> dict[str, Any]:
        try:
            reply: dict[str, Any] | None = wire.receive(self._replies)
        except ValueError as exc:
            raise GoneError(f"it gave {exc}") from None
        if reply is None:
            raise GoneError("it ended before its tests")
        if "raised" in reply:
            _raise(reply["raised"])
        return reply

    def ask(
        self,
        target: str | int,
        *,
        attribute: str | None = None,
        calls: bool = True,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """The answer. Lists and the like among `args` are changed as the solution changed them."""
        self.num_asked += 1
        try:
            message = {
                "target": target,
                "attribute": attribute,
                "calls": calls,
                "args": wire.encode(args, _number),
                "kwargs": wire.encode(kwargs or {}, _number),
            }
        except wire.NotPlainError as exc:
            raise DataError(
                f"a test passes {exc}: the solution is called with plain data"
            ) from None
        try:
            wire.send(self._requests, message)
        except OSError:
            raise GoneError("it ended before its tests") from None
        reply = self.receive()
        try:
            after = wire.decode(reply["args"], self._remote)
            for before, now in zip(args, after, strict=True):
                _change(before, now)
            if reply.get("callable"):
                return Remote(self, target, str(attribute))
            return wire.decode(reply["value"], self._remote)
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as exc:
            raise GoneError(f"it gave no proper answer ({type(exc).__name__})") from None

    def _remote(self, number: int, _kind: str) -> "Remote":
        return Remote(self, number)


class Remote:
    """An object in the process of the solution.

    Compared with anything of the tests it is different. Two objects of the solution are compared by
    the solution, as the tests asked for.

    `is_made_by_test`: the test called a class by its name, which begins with a capital letter, so it
    means to call methods. Any other object may stand where the test expects a text or a list: a method that
    these have would be told what is expected (`greet().startswith("Hello")`), and is not called.
    """

    def __init__(
        self,
        solution: Solution,
        target: str | int,
        attribute: str | None = None,
        *,
        is_made_by_test: bool = False,
    ) -> None:
        self.__dict__.update(
            _solution=solution,
            _target=target,
            _attribute=attribute,
            _name=attribute,
            _is_made_by_test=is_made_by_test or (isinstance(target, str) and target[:1].isupper()),
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        is_plain_method = self._name in _PLAIN_METHODS and not self._is_made_by_test
        if is_plain_method and (args or kwargs):
            raise DataError(
                f"a test calls {self._name} of an object that the program returned, which would tell the "
                "program what is expected: compare with ==, or assert isinstance(..., str) or the like first"
            )
        made = self._solution.ask(self._target, attribute=self._attribute, args=args, kwargs=kwargs)
        if isinstance(made, Remote) and isinstance(self._target, str):
            made.__dict__["_is_made_by_test"] = self._is_made_by_test
        return made

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = self._solution.ask(self._target, attribute=name, calls=False)
        if isinstance(
            found, Remote
        ):  # a method, or an object that the solution gives in place of one
            found.__dict__.update(_name=name, _is_made_by_test=self._is_made_by_test)
        return found

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Remote):
            return False
        return self is other or bool(_forward("__eq__")(self, other))

    def __contains__(self, item: object) -> bool:
        """Compare one by one, here: the solution's own `__contains__` would be told what is
        expected."""
        try:
            items = iter(self)
        except TypeError:
            raise DataError(
                "a test asks with `in` for what an object of the solution contains, and it cannot be "
                "iterated over: call a method of it, or compare lists"
            ) from None
        return any(item is found or item == found for found in items)

    __hash__ = object.__hash__


def _forward(name: str) -> Any:
    def method(self: Remote, *args: Any) -> Any:
        return self._solution.ask(self._target, attribute=name, args=args)

    return method


for _name in ("__len__", "__getitem__", "__setitem__", "__iter__", "__next__"):
    setattr(Remote, _name, _forward(_name))
for _name in ("__str__", "__repr__", "__bool__"):
    setattr(Remote, _name, _forward(_name))


def _number(item: Any) -> int:
    if isinstance(item, Remote) and isinstance(item._target, int) and item._attribute is None:
        return item._target
    raise wire.NotPlainError(f"a {type(item).__name__}")


def _raise(raised: Any) -> NoReturn:
    """Raise what the solution raised, as the nearest exception of Python's own."""
    try:
        names, message = [str(name) for name in raised["types"]], str(raised["message"])
    except (KeyError, TypeError):
        raise GoneError("it gave no proper answer") from None
    for name in names:
        kind = getattr(builtins, name, None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            error = Exception(f"{name}: {message}")
            try:
                error = kind(message)
            except TypeError:  # those that are made of more than a message
                error = Exception(f"{name}: {message}")
            error.__notes__ = [f"{names[0]} in the solution"]
            raise error
    error = Exception(
        f"{names[0] if names else 'an exception'}: {message}"
    )  # SystemExit and its like
    error.__notes__ = ["in the solution"]
    raise error


def _change(before: Any, now: Any) -> None:
    """Give a mutable argument the content that the solution left in it."""
    if type(before) is not type(now):
        return
    if isinstance(before, (list, bytearray)):
        before[:] = now
    elif isinstance(before, (dict, set)):
        before.clear()
        before.update(now)


def main() -> None:
    order = json.loads(sys.stdin.buffer.read())
    verdict = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    solution = Solution(int(sys.argv[1]))
    said: dict[str, Any] = {"results": [], "problem": "", "data_error": ""}
    try:
        solution.names = [str(name) for name in solution.receive().get("names", ())]
        _import_from(solution, solution.names)
        for test in order["tests"]:
            said["results"].append(_result(test, order, solution))
    except DataError as exc:
        said["data_error"] = str(exc)
    except GoneError as exc:
        said["problem"] = str(exc)
    except Exception as exc:  # noqa: BLE001 - raised by the solution's own top level
        said["problem"] = _described(exc)
    json.dump(said, verdict)
    verdict.flush()
    os._exit(0)  # a thread or an exit handler of a test has no say any more


def _import_from(solution: Solution, names: list[str]) -> None:
    """Make `from solution import name` and `import solution` work in the tests."""

    def attribute(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Remote(solution, name) if name in names else solution.ask(name, calls=False)

    vars(_module("solution")).update(__getattr__=attribute, __all__=names)


def _module(name: str) -> types.ModuleType:
    module = sys.modules[name] = types.ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    return module


def _result(test: Any, order: dict[str, Any], solution: Solution) -> str:
    """The reason why the test failed; empty if it passed."""
    before, why = solution.num_asked, ""
    try:
        if isinstance(test, str):
            _run_code(test, order, solution)
        else:
            _run_call(test, order, solution)
    except (DataError, GoneError):
        raise
    except SystemExit:
        raise DataError("a test exits") from None
    except BaseException as exc:  # noqa: BLE001 - a test that raises has failed
        why = _described(exc)
        if not _is_failure(exc, was_asked=solution.num_asked > before):
            raise DataError(f"a test fails by itself: {why}: {test[:100]!r}") from None
    if solution.num_asked == before:
        raise DataError(
            f"a test calls nothing of the solution: {test[:100]!r}. What runs is the text itself, "
            "check(candidate), test_* functions without arguments, and classes of unittest.TestCase"
        )
    return why


def _is_failure(error: BaseException, *, was_asked: bool) -> bool:
    """Whether the solution may have caused `error`: by raising it, or by returning what a test cannot use."""
    cause: BaseException | None = error
    while cause is not None:
        if getattr(cause, "__notes__", ()):
            return True
        cause = cause.__cause__ or cause.__context__
    is_skipped = type(error).__name__ in ("SkipTest", "Skipped")  # of unittest, of pytest
    return was_asked and not is_skipped and not isinstance(error, ImportError)


def _run_call(test: dict[str, Any], order: dict[str, Any], solution: Solution) -> None:
    name = order["entry_points"][0]
    args, kwargs = tuple(test.get("args", ())), test.get("kwargs") or {}
    got = _candidate(name, solution)(*args, **kwargs)
    if not is_same(got, test["expected"]):
        raise AssertionError(f"{name} returned {got!r:.100}, not {test['expected']!r:.100}")


def _candidate(name: str, solution: Solution) -> Any:
    """The function that an entry point names. For `Solution().solve`, a new object is made."""
    method = _METHOD.fullmatch(name)
    if method is None and name not in solution.names and "Solution" in solution.names:
        method = _METHOD.fullmatch(
            f"Solution.{name}"
        )  # the answer of a site that asks for this class
    if method is None:
        return Remote(solution, name)
    return getattr(Remote(solution, method[1], is_made_by_test=True)(), method[2])


def is_same(got: Any, expected: Any) -> bool:
    """Equality as JSON can express it: tuples are lists, floats are near, True is not 1."""
    if isinstance(expected, bool) or isinstance(got, bool) or expected is None:
        return got is expected
    if isinstance(expected, float) and isinstance(got, (int, float)):
        return math.isclose(got, expected, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
    if isinstance(expected, list) and isinstance(got, (list, tuple)):
        return len(got) == len(expected) and all(map(is_same, got, expected))
    if isinstance(expected, dict) and isinstance(got, dict):
        if not all(isinstance(key, str) for key in got):
            got = _with_keys_of_json(got)
        return got.keys() == expected.keys() and all(
            is_same(got[key], value) for key, value in expected.items()
        )
    return bool(got == expected)


def _with_keys_of_json(found: dict[Any, Any]) -> dict[Any, Any]:
    """The dict with its keys as text, as JSON writes `{1: 2}`: the tests were JSON, which the program cannot know."""
    written = {json.dumps(key) if isinstance(key, (int, float)) else key: key for key in found}
    if len(written) < len(found):  # 1 and "1": JSON has no such dict
        return found
    return {name: found[key] for name, key in written.items()}


def _run_code(test: str, order: dict[str, Any], solution: Solution) -> None:
    source = order["setup"] + "\n" + test
    try:
        tree = ast.parse(source, "test.py")
    except (SyntaxError, ValueError) as exc:
        raise DataError(f"a test is no Python: {exc}: {test[:100]!r}") from None
    namespace = vars(_module("test"))
    free = _free_names(tree)
    entry_points = {_METHOD.sub(r"\1", name) for name in order["entry_points"]}
    for name in free:
        module = _USUAL_NAMES.get(name, name)
        is_module = name in _names_with_attributes(tree) and importlib.util.find_spec(module)
        if is_module and name not in entry_points:
            namespace[name] = importlib.import_module(module)
        elif not entry_points or name in entry_points:
            namespace[name] = Remote(solution, name)  # one that it does not have fails when called
    try:
        exec(compile(tree, "test.py", "exec"), namespace)
        _run_check(namespace, order, solution)
        _run_functions(namespace, tree)
        _run_cases(namespace)
    except NameError as exc:
        if exc.name in free:
            raise DataError(
                f"a test uses {exc.name!r}, which it does not define and which is no entry_point"
            ) from None
        raise


def _run_check(namespace: dict[str, Any], order: dict[str, Any], solution: Solution) -> None:
    """Run the tests as HumanEval does."""
    check = namespace.get("check")
    if check is None or isinstance(check, Remote):
        return
    if not order["entry_points"]:
        raise DataError("the tests define check(candidate), so the task needs an entry_point")
    _refuse_async("check", check)
    check(_candidate(order["entry_points"][0], solution))


def _run_functions(namespace: dict[str, Any], tree: ast.AST) -> None:
    """Run the tests as pytest does. pytest itself is not installed here, so fixtures and parameters are refused."""
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    for name, item in list(namespace.items()):
        if not name.lower().startswith("test") or getattr(item, "__module__", "") != "test":
            continue
        if inspect.isclass(item):
            has_tests = any(method.startswith("test") for method in dir(item))
            if has_tests and name not in used and not hasattr(item, "debug"):  # no TestCase
                raise DataError(f"class {name} is no unittest.TestCase: nothing runs its tests")
        elif inspect.isfunction(item) and name.startswith("test_"):
            _refuse_async(name, item)
            parameters = inspect.signature(item).parameters.values()
            if all(
                p.default is not p.empty or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
                for p in parameters
            ):
                item()
            elif name not in used:
                raise DataError(f"{name} has parameters, and nothing gives them")


def _run_cases(namespace: dict[str, Any]) -> None:
    unittest = sys.modules.get("unittest")
    if unittest is None:
        return
    for item in list(namespace.values()):
        is_case = inspect.isclass(item) and issubclass(item, unittest.TestCase)
        if not is_case or item.__module__ != "test":
            continue
        for name in unittest.defaultTestLoader.getTestCaseNames(item):
            if not hasattr(item, "asyncSetUp"):
                _refuse_async(name, getattr(item, name))
        unittest.defaultTestLoader.loadTestsFromTestCase(item).debug()  # raises what a test raises


def _refuse_async(name: str, function: Any) -> None:
    if inspect.iscoroutinefunction(function):
        raise DataError(f"{name} is async, and nothing awaits it")


def _free_names(tree: ast.AST) -> set[str]:
    """The names that the tests use and do not define. Python's own are never the solution's."""
    used: set[str] = set()
    own = set(dir(builtins))
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else own).add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            own.add(node.name)
        elif isinstance(node, ast.arg):
            own.add(node.arg)
        elif isinstance(node, ast.alias):
            own.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.ExceptHandler) and node.name:
            own.add(node.name)
    return used - own


def _names_with_attributes(tree: ast.AST) -> set[str]:
    """`math` of `math.isclose`: such names mean modules, also where the tests forgot to import them."""
    parts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return {part.id for part in parts if isinstance(part, ast.Name)}


def _described(error: BaseException) -> str:
    notes = getattr(error, "__notes__", ())
    where = f" ({notes[0]})" if notes else ""
    text = str(error)
    return f"{type(error).__name__}{': ' if text else ''}{text}{where}"[:_MAX_MESSAGE]


if __name__ == "__main__":
    main()
