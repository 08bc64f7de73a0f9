"""The process of the solution: runs its code, and calls its functions when the tests ask for it.

Nothing here is trusted. The solution may replace all of it and answer what it likes: it knows the
arguments of a call, never the value that the tests expect.
"""

import builtins
import importlib
import operator
import os
import sys
import types
from typing import Any

sys.path.insert(0, os.getcwd())
import wire  # type: ignore[import-not-found]

_OPERATIONS: dict[str, Any] = {
    "__bool__": bool,
    "__eq__": operator.eq,
    "__getitem__": operator.getitem,
    "__iter__": iter,
    "__len__": len,
    "__next__": next,
    "__repr__": repr,
    "__setitem__": operator.setitem,
    "__str__": str,
}
"""Operations of Python on an object, whether or not its class defines the method."""
_USUAL_MODULES = (
    "bisect", "collections", "copy", "functools", "heapq", "itertools", "json", "math", "operator", "random",
    "re", "string", "sys", "typing",
)  # fmt: skip
_USUAL_STARS = ("typing", "collections", "itertools", "functools", "heapq", "bisect", "math")


def main() -> None:
    descriptor = int(sys.argv[1])
    requests = os.fdopen(descriptor, "rb")
    replies = os.fdopen(os.dup(descriptor), "wb")
    with open("solution.py", encoding="utf-8", errors="surrogateescape") as file:
        source = file.read()
    module = types.ModuleType("solution")
    sys.modules["solution"] = module
    namespace = vars(module)
    if sys.argv[2:] == ["usual_names"]:
        namespace.update(_usual_names())
    given = dict(namespace)
    try:
        exec(compile(source, "solution.py", "exec"), namespace)
    except BaseException as exc:  # noqa: BLE001 - reported to the tests
        wire.send(replies, {"raised": _raised(exc)})
        return
    own = [name for name, item in namespace.items() if given.get(name) is not item]
    wire.send(replies, {"names": [name for name in own if callable(namespace[name])]})
    objects: list[Any] = []

    def keep(item: Any) -> int:
        objects.append(item)
        return len(objects) - 1

    while (request := wire.receive(requests)) is not None:
        wire.send(replies, _answer(request, namespace, objects, keep))


def _answer(
    request: dict[str, Any], namespace: dict[str, Any], objects: list[Any], keep: Any
) -> Any:
    try:
        args = wire.decode(request["args"], lambda number, _: objects[number])
        kwargs = wire.decode(request["kwargs"], lambda number, _: objects[number])
        target = request["target"]
        if isinstance(target, str) and target not in namespace:
            raise NameError(f"the solution has no {target!r}")
        found = namespace[target] if isinstance(target, str) else objects[target]
        attribute = request["attribute"]
        if attribute in _OPERATIONS:
            value = _OPERATIONS[attribute](found, *args)
        else:
            found = found if attribute is None else getattr(found, attribute)
            value = found(*args, **kwargs) if request["calls"] else found
        is_stateful = callable(value) and not request["calls"]  # a method: the tests call it next
        reply = (
            {"callable": True}
            if is_stateful
            else {"value": wire.encode(value, keep, unpacks_arrays=True)}
        )
        return reply | {"args": wire.encode(args, keep, unpacks_arrays=True)}
    except BaseException as exc:  # noqa: BLE001 - reported to the tests
        return {"raised": _raised(exc)}


def _usual_names() -> dict[str, Any]:
    """The names that sites with tests of functions give every program without an import, such as `List`."""
    names: dict[str, Any] = {name: importlib.import_module(name) for name in _USUAL_MODULES}
    for module in _USUAL_STARS:
        public = getattr(names[module], "__all__", None) or dir(names[module])
        names |= {
            name: getattr(names[module], name)
            for name in public
            if not name.startswith("_") and not hasattr(builtins, name)  # `pow` takes a modulus
        }
    return names


def _raised(error: BaseException) -> dict[str, Any]:
    return {"types": [kind.__name__ for kind in type(error).__mro__], "message": str(error)[:500]}


if __name__ == "__main__":
    main()
