"""Documents that cannot lie about settings and files."""

import re
from pathlib import Path

import pytest

from shared.cli.config import example_text
from shared.settings import known_names, refuse_unknown

ROOT = Path(__file__).parents[2]
NAME = re.compile(r"\bBUSWAY_[A-Z0-9_]*[A-Z0-9]\b(?!_)")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
SKIPPED = {".git", ".venv", ".busway", "node_modules"}
DOCUMENTS = sorted(path for path in ROOT.rglob("*.md") if not SKIPPED & set(path.relative_to(ROOT).parts))
SPEAKING = [
    *DOCUMENTS,
    ROOT / ".env.example",
    ROOT / "Makefile",
    ROOT / "docker-compose.yml",
    *sorted(path for path in (ROOT / "deploy").rglob("*") if path.is_file() and path.suffix != ".md"),
]


def name_of(path):
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", SPEAKING, ids=name_of)
def test_a_setting_that_is_named_exists(path):
    refuse_unknown(NAME.findall(path.read_text()))


def test_the_example_is_generated():
    """`busway config example > .env.example` after a change of settings."""
    assert (ROOT / ".env.example").read_text() == example_text()


def test_the_example_has_every_setting():
    named = set(NAME.findall(example_text()))

    assert known_names() <= named


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_a_link_leads_somewhere(path):
    for target in LINK.findall(path.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        linked = (path.parent / file) if file else path
        assert linked.exists(), f"{name_of(path)} links to {target}"
        if anchor and linked.suffix == ".md":
            assert anchor in anchors(linked.read_text()), f"{name_of(path)} links to {target}"


def anchors(text):
    """The ids that GitHub gives to headings."""
    headings = re.findall(r"^#+ +(.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
