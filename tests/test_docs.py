"""The pages hang together; their blocks run by conftest.py."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page):
    prose = re.sub(r"```.*?```|`[^`\n]*`", "code", page.read_text(), flags=re.DOTALL)
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", prose)
    assert not [link for link in links if "://" not in link and not (page.parent / link).exists()]


def test_the_readme_names_every_command():
    from tensorattn.cli import main

    text = (ROOT / "README.md").read_text()
    (listed,) = re.findall(r"`tensorattn ([a-z |]+)`", text)
    assert set(listed.split(" | ")) == main.commands.keys()


def test_the_page_of_the_command_line_names_every_option():
    from tensorattn.cli import main

    text = (ROOT / "docs" / "cli.md").read_text()
    options = {
        option for command in main.commands.values() for p in command.params for option in p.opts if "-" in option
    }
    assert not [o for o in options if o.startswith("-") and not o.startswith("--") and f"{o} " not in text]
    shown = {"--shape", "--strict", "--backend", "--format", "--stage", "--as"}
    assert shown <= options
    assert not [o for o in shown if o not in text]
