"""The public surface stays small, and every name on it has a page."""

import re
from typing import Any

import pytest

import areal_sdk
from areal_sdk import algorithms, launcher, records, testing, tool_calls, trainer
from areal_sdk.backends import remote
from tests.docs.blocks import ROOT

MAX_PUBLIC_NAMES = 25


def pages_text() -> str:
    return "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md"))


def test_the_public_surface_stays_small() -> None:
    assert len(areal_sdk.__all__) <= MAX_PUBLIC_NAMES
    assert len(set(areal_sdk.__all__)) == len(areal_sdk.__all__)


def test_every_public_name_is_there_and_on_a_page() -> None:
    text = pages_text()
    for name in areal_sdk.__all__:
        assert getattr(areal_sdk, name) is not None
        assert re.search(rf"\b{name}\b", text), f"areal_sdk.{name} is on no page in docs/"


def test_every_name_for_tests_is_on_a_page() -> None:
    text = pages_text()
    for name in testing.__all__:
        assert re.search(rf"\b{name}\b", text), f"areal_sdk.testing.{name} is on no page in docs/"


@pytest.mark.parametrize("module", [algorithms, launcher, records, remote, tool_calls, trainer])
def test_every_name_of_a_contract_is_on_the_page_of_public_names(module: Any) -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    for name in module.__all__:
        assert getattr(module, name) is not None
        assert re.search(rf"\b{name}\b", text), f"{module.__name__}.{name} is not in docs/api.md"
