"""Plugins need nothing of ours but `areal_sdk`, its `algorithms`, `sandbox` and `testing`; pages neither."""

import re

from tests.docs.blocks import ROOT, blocks

INSIDE = re.compile(
    r"^\s*(?:from|import) (areal_sdk\.(?!testing\b|sandbox\b(?!\.)|algorithms\b(?!\.))[\w.]+)",
    re.MULTILINE,
)

TEMPLATES = sorted((ROOT / "areal_sdk" / "cli" / "templates").rglob("*.py"))
PLUGINS = sorted((ROOT / "plugins").rglob("*.py"))
PAGES = [
    ROOT / "docs" / name
    for name in (
        *("agents.md", "environments.md", "tasks.md", "rewards.md", "evaluation.md"),
        *("plugins.md", "api.md", "hooks.md", "algorithms.md"),
    )
]


def test_what_plugin_authors_read_imports_public_names_only() -> None:
    assert TEMPLATES
    assert PLUGINS
    inside = {
        file.name: INSIDE.findall(file.read_text(encoding="utf-8"))
        for file in (*TEMPLATES, *PLUGINS)
    }
    inside |= {b.where: INSIDE.findall(b.code) for page in PAGES for b in blocks(page, "python")}
    assert {where: found for where, found in inside.items() if found} == {}
