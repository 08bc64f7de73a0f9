"""Pages say what is true: code runs, commands parse, settings load, links lead somewhere."""

import inspect
import re
import sys
import tomllib
from pathlib import Path

import pytest

from areal_sdk import hookspecs
from areal_sdk.cli.main import COMMANDS
from areal_sdk.config import parse_config
from areal_sdk.plugins.checks import HOOKS
from tests.docs.blocks import PAGES, ROOT, Block, blocks, commands, execute, parse_command

pytestmark = pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")

_SETTING = re.compile(r"^\| `([a-z_.]+)` \| (?:`([^`]*)`)? ?\| ", re.MULTILINE)


def _defaults() -> dict[str, str]:
    """The default of every setting, by its key, as the page of settings has it."""
    defaults, table = {}, ""
    for line in (ROOT / "docs" / "config.md").read_text(encoding="utf-8").splitlines():
        if heading := re.match(r"## `\[(.*)\]`$", line):
            table = heading[1]
        elif row := re.match(r"\| `(\w+)` \| .*? \| (?:`(.*?)`|) ?\| ", line):
            defaults[f"{table}.{row[1]}"] = row[2] or ""
    return defaults


def test_the_tables_of_settings_in_pages_have_their_defaults() -> None:
    """Such a table begins with `| setting | default |`."""
    defaults, found = _defaults(), 0
    for page in (page for page in PAGES if page.name != "config.md"):
        for table in page.read_text(encoding="utf-8").split("\n| setting | default |")[1:]:
            for key, default in _SETTING.findall(table.partition("\n\n")[0]):
                assert defaults.get(key) == default, f"{page_name(page)}: {key} = {default}"
                found += 1
    assert found > 20


_LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)")


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize(
    "page", [page for page in PAGES if list(blocks(page, "python"))], ids=page_name
)
async def test_python_blocks_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks run in order, in one namespace. A reward must be findable in a file, so each page
    becomes one."""
    monkeypatch.chdir(tmp_path)
    name = f"page_{page.stem.lower()}"
    module = type(sys)(name)
    module.__file__ = str(tmp_path / f"{name}.py")
    monkeypatch.setitem(sys.modules, name, module)
    for block in blocks(page, "python"):
        await execute(block, vars(module))


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_commands_exist_with_their_options(page: Path) -> None:
    for where, words in commands(page):
        try:
            parse_command(words)
        except Exception as exc:
            raise AssertionError(f"{where}: areal-sdk {' '.join(words)}: {exc}") from exc


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_settings_load(page: Path) -> None:
    for block in blocks(page, "toml"):
        values = tomllib.loads(block.code)
        if "project" not in values:
            parse_config(values)


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"`[^`\n]+`", "code", page.read_text(encoding="utf-8"))  # `f[x](y)` is no link
    for target in _LINK.findall(text):
        assert (page.parent / target).exists(), f"{page_name(page)}: {target} does not exist"


def test_every_page_is_in_the_nav_and_on_the_map() -> None:
    """The nav of the site, mkdocs.yml, and the map, docs/index.md."""
    pages = {page.name for page in (ROOT / "docs").glob("*.md")}
    nav = re.findall(r"^ +- .*?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE)
    assert sorted(nav) == sorted(pages), "mkdocs.yml"
    on_the_map = _LINK.findall((ROOT / "docs" / "index.md").read_text(encoding="utf-8"))
    assert pages - {"index.md"} <= set(on_the_map), "docs/index.md"


def test_the_readme_fits_on_its_page() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def _anchors(page: Path) -> set[str]:
    """The fragments of a page's headings, as GitHub makes them."""
    anchors: dict[str, int] = {}
    for heading in re.findall(
        r"^#+ (.+)$",
        re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL),
        re.M,
    ):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
        anchors[slug] = anchors.get(slug, -1) + 1
    return {
        slug if not n else f"{slug}-{n}" for slug, last in anchors.items() for n in range(last + 1)
    }


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_lead_to_headings(page: Path) -> None:
    links = re.findall(
        r"\]\((?!https?:|mailto:)([^)#\s]*)#([^)\s]+)\)", page.read_text(encoding="utf-8")
    )
    for target, fragment in links:
        linked = page.parent / target if target else page
        if linked.suffix == ".md":
            assert fragment in _anchors(linked), f"{page_name(page)}: {target}#{fragment}"


_FILE = re.compile(r"`((?:[a-z0-9_.-]+/)+[a-z0-9_-]+\.(?:py|md|toml|sh))`")


@pytest.mark.parametrize(
    "page",
    [*(page for page in PAGES if page.parent.name != "adr"), ROOT / "CHANGELOG.md"],
    ids=page_name,
)
def test_a_file_that_a_page_names_exists(page: Path) -> None:
    """A page names a file from the root, from the package, or from its own folder."""
    bases = (ROOT, ROOT / "areal_sdk", page.parent)
    for name in _FILE.findall(page.read_text(encoding="utf-8")):
        assert any((base / name).is_file() for base in bases), f"{name} is no file"


def test_the_hooks_page_lists_every_hook_as_it_is() -> None:
    page = (ROOT / "docs" / "hooks.md").read_text(encoding="utf-8")
    listed = re.findall(r"^### `(\w+)\((.*?)\)`$", page, re.MULTILINE)
    specs = [(name, inspect.signature(getattr(hookspecs, name))) for name in HOOKS]
    assert listed == [(name, ", ".join(signature.parameters)) for name, signature in specs]


def test_generated_pages_are_up_to_date() -> None:
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        from generate_docs import pages
    finally:
        sys.path.remove(str(ROOT / "scripts"))
    for name, text in pages().items():
        current = (ROOT / "docs" / name).read_text(encoding="utf-8")
        assert current == text.rstrip() + "\n", f"docs/{name} is out of date: make docs"


def test_every_command_is_documented_in_the_changelog() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert not [name for name in COMMANDS if f"`{name}`" not in changelog]


def test_the_changelog_of_the_first_version_is_one_page() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    section = changelog.partition("## 0.1.0")[2].partition("\n## ")[0]
    assert 20 < len(section.splitlines()) < 100


def test_contributing_stays_short() -> None:
    assert len((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines()) < 150


async def test_a_block_that_fails_names_its_page_and_line() -> None:
    block = Block(ROOT / "README.md", 7, "python", "x = 1\nraise ValueError(x)\n")
    with pytest.raises(ValueError, match="1") as caught:
        await execute(block, {})
    assert caught.traceback[-1].lineno == 7
    assert str(caught.traceback[-1].path).endswith("README.md")
