"""Links and headings of the documents, as GitHub and mkdocs both read them. Standard library only."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

_FENCE = re.compile(r"^( *)(```+|~~~+)[^\n]*\n.*?^\1\2[^\n]*$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(`+)(?:.|\n)*?\1")
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
LINK = re.compile(r"(\]\()([^()\s]+(?:\([^()\s]*\)[^()\s]*)*)((?:\s+\"[^\"]*\")?\))|((?:src|href)=\")([^\"]+)(\")")
_HEADING = re.compile(r"^(#{1,6}) +(.+?) *#* *$", re.MULTILINE)
_ADDRESS = re.compile(r"https?://[^\s)>\"'`|\]]+")


@dataclass(frozen=True, slots=True)
class Link:
    page: Path
    line: int
    target: str


def without_code(text: str) -> str:
    """The text with code and comments blanked, every other character where it was."""
    for pattern in (_COMMENT, _FENCE, _CODE):
        text = pattern.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    return text


def links_of(page: Path) -> list[Link]:
    text = without_code(page.read_text())
    return [Link(page, text.count("\n", 0, found.start()) + 1, found[2] or found[5]) for found in LINK.finditer(text)]


def addresses_of(text: str) -> list[str]:
    """Addresses in the world outside, code left out: there they are examples."""
    return [found.rstrip(".,;:") for found in _ADDRESS.findall(without_code(text))]


def heading_slug(heading: str) -> str:
    """The anchor of a heading, as GitHub makes it: letters, digits and hyphens, a hyphen for each space."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")


def anchors_of(page: Path) -> set[str]:
    text = page.read_text()
    blanked = without_code(text)
    seen: Counter[str] = Counter()
    anchors = set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text))
    for found in _HEADING.finditer(_FENCE.sub(lambda fence: re.sub(r"[^\n]", " ", fence[0]), text)):
        if not blanked[found.start() : found.start() + 1].strip():
            continue  # inside a comment
        slug = heading_slug(found[2])
        anchors.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return anchors


def title_of(page: Path) -> str:
    """The first heading; the file's name where there is none."""
    found = _HEADING.search(page.read_text())
    return found[2] if found else page.stem


def lead_of(page: Path) -> str:
    """The first sentence below the title, without its links; empty where something else stands there."""
    for block in without_code(page.read_text()).split("\n\n")[1:2]:
        if block[:1].isalpha():
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(page.read_text().split("\n\n")[1].split()))
            return re.split(r"(?<=[.:?]) (?=[A-Z`*])", text)[0].rstrip(":")
    return ""


def pages() -> list[Path]:
    """Every document that people read: docs, the front pages, and the pages beside examples and records."""
    beside = (path for folder in ("examples", "results") for path in (ROOT / folder).rglob("*.md"))
    front = (ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))
    return sorted({*DOCS.rglob("*.md"), *beside, *front})


def problem_of(link: Link) -> str:
    """Why a link leads nowhere; empty where it leads somewhere, or out into the world."""
    if "://" in link.target or link.target.startswith("mailto:"):
        return ""
    path, _, anchor = link.target.partition("#")
    if path.startswith("/"):
        return "an absolute path works in no clone"
    target = (link.page.parent / path).resolve() if path else link.page
    if not target.exists():
        return "no such file"
    if anchor and target.suffix == ".md" and anchor not in anchors_of(target):
        return f"no heading #{anchor} there"
    return ""
