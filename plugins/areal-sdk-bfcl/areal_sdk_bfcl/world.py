"""`World`: the APIs of one conversation, in which calls are carried out."""

import ast
import copy
import importlib
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from areal_sdk_bfcl.entries import Entry
from areal_sdk_bfcl.package import make_importable

LONG_CONTEXT = "long_context"
_DIGITS = ("precision", "decimal_places", "exponent")
"""Arguments that say how many digits are computed. BFCL computes any number of them, however long it takes."""
_MOST_DIGITS = 1000


@dataclass(frozen=True, slots=True)
class Call:
    """A call of one function, with its arguments by name."""

    function: str
    arguments: Mapping[str, Any]


class World:
    """BFCL's own objects in the state that the calls so far have left. They reach nothing outside of it."""

    def __init__(self, entry: Entry) -> None:
        make_importable()
        from bfcl_eval.constants import executable_backend_config as backend

        self.instances: dict[str, Any] = {}
        self._functions: dict[str, Callable[..., Any]] = {}
        for name in entry.classes:
            module = importlib.import_module(backend.CLASS_FILE_PATH_MAPPING[name])
            instance = getattr(module, name)()
            if name not in backend.STATELESS_CLASSES:
                config = copy.deepcopy(entry.initial_config.get(name, {}))
                instance._load_scenario(config, long_context=entry.category == LONG_CONTEXT)
            self.instances[name] = instance
            methods = inspect.getmembers(instance, predicate=inspect.ismethod)
            self._functions |= {key: one for key, one in methods if not key.startswith("_")}

    def carry_out(self, call: Call) -> str:
        """The text that BFCL shows for the result, or for the error."""
        function = self._functions.get(call.function)
        if function is None:
            return f"Error during execution: name '{call.function}' is not defined"
        if any(_is_endless(call.arguments.get(name)) for name in _DIGITS):
            return f"Error during execution: more than {_MOST_DIGITS} digits"
        try:
            return _shown(function(**call.arguments))
        except Exception as error:  # noqa: BLE001 - the APIs raise anything for odd arguments
            return f"Error during execution: {error}"

    def read(self, written: str) -> Call:
        """The call that a known solution writes in Python's syntax, such as `sort('a.txt')`."""
        tree = ast.parse(written.strip(), mode="eval").body
        if not (isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name)):
            raise ValueError(f"{written!r} is no call of a function")
        values = [ast.literal_eval(value) for value in tree.args]
        named = {str(one.arg): ast.literal_eval(one.value) for one in tree.keywords}
        names = list(inspect.signature(self._functions[tree.func.id]).parameters)
        return Call(tree.func.id, {**dict(zip(names, values, strict=False)), **named})


def _is_endless(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) > _MOST_DIGITS


def _shown(result: Any) -> str:
    """The result as BFCL shows it."""
    if isinstance(result, dict):
        try:
            return json.dumps(result)
        except (TypeError, ValueError):
            pass
    return str(result)
