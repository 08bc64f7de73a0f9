"""A setting's default is written in one place; who uses it is handed the section or the option."""

import ast
from collections.abc import Iterator
from pathlib import Path

import areal_sdk
from areal_sdk.algorithms import presets
from areal_sdk.builtin import ALGORITHMS
from areal_sdk.config import Config, Section, sections_in
from areal_sdk.options import list_options
from areal_sdk_sglang.settings import SGLangSection

PACKAGE = Path(areal_sdk.__file__).parent

PRESETS = [getattr(presets, name) for name in ALGORITHMS.values()]

NEUTRAL = (None, False, True, 0, 1, "", (), "auto", "127.0.0.1")
"""Defaults that recommend nothing: absent, off, on, one, by itself, this machine."""

COPIED = 3
"""A class with so many fields named as the settings of one section holds a copy of the section."""

ARITHMETIC = "flow/rules.py:StalenessGate"
"""A class that is tested with numbers, and computes with nothing but its numbers."""


def sections() -> list[type[Section]]:
    """Every table of settings on docs/config.md."""
    models = list(sections_in(Config).values())
    inside = [own for model in models for own in sections_in(model).values()]
    return [Config, SGLangSection, *models, *inside]


def settings() -> set[str]:
    """The name of every setting on docs/config.md."""
    names = {name for model in sections() for name in model.model_fields}
    return names | {o.name for preset in PRESETS for o in list_options(preset)}


def declarations() -> Iterator[tuple[str, object, str]]:
    """Name, default and class of each field of the package that has the name of a setting."""
    names = settings()
    for path in sorted(PACKAGE.rglob("*.py")):
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for cls in [node for node in nodes if isinstance(node, ast.ClassDef)]:
            for field in cls.body:
                if (
                    isinstance(field, ast.AnnAssign)
                    and isinstance(field.target, ast.Name)
                    and field.target.id in names
                    and isinstance(field.value, ast.Constant)
                ):
                    where = f"{path.relative_to(PACKAGE)}:{cls.name}"
                    yield field.target.id, field.value.value, where


def test_no_default_of_a_setting_is_written_twice() -> None:
    places: dict[tuple[str, object], list[str]] = {}
    for name, default, where in declarations():
        if default not in NEUTRAL:
            places.setdefault((name, default), []).append(where)
    twice = {
        key: where
        for key, where in places.items()
        # Two sections may have settings of one name: `rollout.batch` and `sft.batch`.
        if len(where) > 1 and any(not place.startswith("config/sections/") for place in where)
    }
    assert not twice


def fields_of_classes() -> Iterator[tuple[set[str], str]]:
    """The annotated fields of each class of the package that is no section, and where it is."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for cls in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(cls, ast.ClassDef) and not cls.name.endswith("Section"):
                fields = {
                    field.target.id
                    for field in cls.body
                    if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
                }
                yield fields, f"{path.relative_to(PACKAGE)}:{cls.name}"


def test_nobody_copies_the_fields_of_a_section() -> None:
    copies = {
        where: sorted(fields & set(section.model_fields))
        for fields, where in fields_of_classes()
        for section in sections()[1:]
        if not where.startswith("config/")
        and where != ARITHMETIC
        and len(fields & set(section.model_fields)) >= COPIED
    }
    assert not copies


def test_the_scan_sees_the_settings() -> None:
    found = {name for name, _, _ in declarations()}
    assert {"learning_rate", "max_staleness", "transport", "max_sessions"} <= found


def test_the_options_of_algorithms_have_their_numbers_in_the_presets_alone() -> None:
    numbers = {
        option.default
        for preset in PRESETS
        for option in list_options(preset)
        if isinstance(option.default, float) and option.default not in NEUTRAL
    }
    assert numbers
    for path in (PACKAGE / "algorithms").glob("*.py"):
        if path.name != "presets.py":
            tree = ast.parse(path.read_text(encoding="utf-8"))
            fields = [n.value for n in ast.walk(tree) if isinstance(n, ast.AnnAssign)]
            values = {f.value for f in fields if isinstance(f, ast.Constant)}
            assert not values & numbers, path.name
