"""Workflows and forms: what they name exists, and each action is pinned by the hash of its commit."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

import areal_sdk

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
PINNED = re.compile(r"uses: [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
PARTS = {"tests", "long", "wheels", "sglang"}
"""Parts of `.ci/run` that a lane may name."""


def steps(workflow: Path) -> Iterator[dict[str, Any]]:
    for job in yaml.safe_load(workflow.read_text())["jobs"].values():
        yield from job["steps"]


def commands(workflow: Path) -> str:
    return "\n".join(step.get("run", "") for step in steps(workflow))


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_every_action_is_pinned_by_hash_with_its_version_beside_it(workflow: Path) -> None:
    lines = [line for line in workflow.read_text().splitlines() if "uses:" in line]
    assert len(lines) == sum("uses" in step for step in steps(workflow))
    assert not [line for line in lines if not PINNED.search(line)]


def test_an_action_has_one_version_in_all_workflows() -> None:
    used = re.findall(r"uses: ([\w./-]+)@(\w+)", "".join(path.read_text() for path in WORKFLOWS))
    assert len(dict(used)) == len(set(used))


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_names_targets_and_scripts_that_exist(workflow: Path) -> None:
    run = commands(workflow)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z-]+)", run)) <= targets
    scripts = re.findall(r"(?:scripts|\.ci)/[\w./]+", run)
    assert not [name for name in scripts if not (ROOT / name).is_file()]
    assert set(re.findall(r"\.ci/run (\w+)", run)) <= PARTS


def test_ci_runs_every_part_of_the_checks() -> None:
    assert set(re.findall(r"\.ci/run (\w+)", commands(ROOT / ".github/workflows/ci.yml"))) == PARTS
    known = re.search(r"case \$part in all \| ([a-z |]+)\)", (ROOT / ".ci/checks").read_text())
    assert known is not None
    assert set(known[1].split(" | ")) == PARTS


def test_the_style_lane_answers_within_five_minutes() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    assert jobs["style"]["timeout-minutes"] <= 5


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_may_only_read_and_every_job_has_a_deadline(workflow: Path) -> None:
    read = yaml.safe_load(workflow.read_text())
    assert read["permissions"] == {"contents": "read"}
    undated = [name for name, job in read["jobs"].items() if "timeout-minutes" not in job]
    assert not undated


@pytest.mark.parametrize(
    "form", [path for path in FORMS if path.stem != "config"], ids=lambda path: path.stem
)
def test_a_form_has_a_name_and_fields_with_distinct_ids(form: Path) -> None:
    read = yaml.safe_load(form.read_text())
    assert read["name"]
    assert read["description"]
    ids = [field["id"] for field in read["body"] if field["type"] != "markdown"]
    assert len(ids) == len(set(ids)) > 0
    assert all(field["attributes"] for field in read["body"])


def test_dependabot_watches_actions_and_constraints() -> None:
    updates = yaml.safe_load((ROOT / ".github/dependabot.yml").read_text())["updates"]
    assert {one["package-ecosystem"] for one in updates} == {"github-actions", "pip"}


def test_the_citation_has_the_version_of_the_package() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == areal_sdk.__version__
    assert citation["license"] == "Apache-2.0"


def test_the_pull_request_template_names_files_that_exist() -> None:
    text = (ROOT / ".github/PULL_REQUEST_TEMPLATE.md").read_text()
    named = re.findall(r"`([\w.]+/[\w./]+)`", text)
    assert named
    assert not [name for name in named if not (ROOT / name).exists()]
