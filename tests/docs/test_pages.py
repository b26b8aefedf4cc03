"""The documentation's commands and programs run as written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked_commands import FOLDER_VARIABLE

ROOT = Path(__file__).parent.parent.parent
PAGE_S_MAX = 300
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in (ROOT / "README.md", ROOT / "deploy" / "README.md", *ROOT.glob("docs/**/*.md"))
    # What PyPI shows of the service is no page; tests/install follows it.
    if path.parent.name != "assets"
)


def sessions(mode: str, page: str, commands_folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the page's blocks as a reader would."""
    return subprocess.run(
        [sys.executable, "scripts/doc_sessions.py", mode, page],
        cwd=ROOT,
        env=os.environ | {FOLDER_VARIABLE: str(commands_folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PAGE_S_MAX,
        check=False,
    )


@pytest.mark.timeout(PAGE_S_MAX)
@pytest.mark.parametrize("page", PAGES)
def test_page_shows_what_is_seen(page: str, commands_folder: Path):
    """A newcomer types what a page says and must see what it shows."""
    done = sessions("--check", page, commands_folder)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_leaves_to_another_test_is_there(page: str):
    """A block that is not run gives a reason; if that names a test, the test exists."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for directive in re.findall(r"<!--\s*test:\s*(?:skip|elsewhere)\s+(.*?)-->", text, re.DOTALL):
        for named in re.findall(r"\btests/[\w/.]+\w", directive):
            assert (ROOT / named).exists(), f"{page} names {named}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("    agent-routing status chat\n", "an indented block"),
        ("```ruby\nputs 1\n```\n", "of the kind 'ruby' is not run"),
        ("<!-- test: skip -->\n```sh\nls\n```\n", "unknown comment: test: skip"),
        ("```sh\nls /no/such/folder\n```\n", "the script ended with 2"),
        ("```console\n$ echo seen\nexpected\n```\n", "+seen"),
        ("```python\nprint('seen')\n```\n\n```text\nexpected\n```\n", "+seen"),
        ("```python\nraise ValueError('no')\n```\n", "ValueError: no"),
        ("```json\n{\n```\n", "not well formed"),
        (
            "```yaml\napi_version: agent_routing/v1\nagent: []\n```\n",
            "the registry file is refused",
        ),
    ],
)
def test_a_page_that_is_wrong_is_found(tmp_path: Path, commands_folder: Path, text: str, said: str):
    """A check that cannot fail proves nothing."""
    page = tmp_path / "page.md"
    page.write_text(f"<!-- test: server tax -->\n\n{text}", encoding="utf-8")
    done = sessions("--check", str(page), commands_folder)
    assert done.returncode == 1
    assert said in done.stdout
