"""docs/clients.md says what is checked and understood, and its code is in the words of the libraries."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from clients.conformance.checks import CHECKS
from clients.conformance.languages import LANGUAGES

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "clients.md").read_text()
CODE: dict[str, str] = dict(re.findall(r"```(python|go|typescript|rust|java)\n(.*?)```", TEXT, re.DOTALL))
ENDS = {"python": "py", "go": "go", "typescript": "ts", "rust": "rs", "java": "java"}


def sources(language: str) -> str:
    """Returns what is written by hand in a language."""
    folder = ROOT / "clients" / language
    files = [path for path in folder.rglob(f"*.{ENDS[language]}") if not made(path.relative_to(folder))]
    return "\n".join(path.read_text() for path in files)


def made(path: Path) -> bool:
    """Says whether a file was made, and not written."""
    return path.parts[0] in ("build", "target", "stubs", "node_modules")


def test_every_language_is_shown() -> None:
    """There is a quickstart for each."""
    assert list(CODE) == [language.name for language in LANGUAGES]


@pytest.mark.parametrize("language", [language.name for language in LANGUAGES])
def test_the_code_is_the_examples(language: str) -> None:
    """What the page shows is a part of a file that is compiled with the client."""

    def dense(text: str) -> str:
        return re.sub(r"\s+", " ", text)

    assert dense(CODE[language]).strip() in dense(sources(language))


def test_every_check_is_told() -> None:
    """The table names the checks, in their order."""
    (table,) = re.findall(r"\| check \| what is done \|\n\|---\|---\|\n((?:\|.*\n)+)", TEXT)
    assert [row.split(" | ")[0].removeprefix("| ") for row in table.splitlines()] == [check.says for check in CHECKS]


@pytest.mark.parametrize("language", [language.name for language in LANGUAGES])
def test_every_argument_is_understood(language: str) -> None:
    """The arguments of the table are in each program."""
    arguments = re.findall(r"^\| `--(\w+)", TEXT, re.MULTILINE)
    assert arguments == ["address", "ca", "session", "from", "deny", "patience"]
    assert [it for it in arguments if not re.search(rf"\b{it}\b", sources(language))] == []


def test_lock_files_name_no_registry() -> None:
    """Whoever installs uses their own: only cargo writes a word for its own registry."""
    locks = [ROOT / "clients" / name for name in ("go/go.sum", "typescript/package-lock.json", "rust/Cargo.lock")]
    for lock in locks:
        text = lock.read_text().replace("registry+https://github.com/rust-lang/crates.io-index", "")
        assert not re.search(r"\"resolved\"|https?://(?!(opencollective|github)\.com|\w+\.org/sponsor)", text), lock
