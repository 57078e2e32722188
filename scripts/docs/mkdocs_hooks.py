"""Hooks of mkdocs: navigation and overviews from the folders, search weights, and links to files outside docs/.

A page is in the navigation because of its folder. Its title is its first heading. How-to pages are grouped by topic.
Files of the repository that a page links to (records, examples, code) are copied below `project/` of the site, so that
the site is complete without a network.
"""

from __future__ import annotations

import os
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))
from markdown_links import DOCS, LINK, ROOT, lead_of, title_of, without_code
from topics import pages_by_topic

_OUTSIDE = "project"
_TABLE_LINE = re.compile(r"^\|.*\|$", re.MULTILINE)
_CODE = re.compile(r"`[^`\n]+`")
_SECTIONS = (
    ("Tutorial", "tutorial"),
    ("How to", "howto"),
    ("Sites", "sites"),
    ("Reference", "reference"),
    ("Explanation", "explanation"),
    ("Decisions", "adr"),
)
_FIRST = ("first-run", "ten-minutes", "first-cluster-run", "commands", "generic", "writing-a-site-file")
"""Pages that come first, in this order. All others are sorted by title."""
_BOOST = {"howto": 4.0, "tutorial": 3.0, "sites": 0.8, "reference": 1.0, "explanation": 0.7, "adr": 0.2}
"""Weight of a page in the search by its folder: users look for a task first, and for a decision last."""
_SMALL = 0.1
"""Weight of long generated pages and of files outside docs/, which contain almost every word."""
_LONG_PAGES = ("reference/json.md", "reference/sources.md", "explanation/by-hand.md", "reference/site-schema.md")


def on_config(config: Any) -> Any:
    config.nav = navigation()
    return config


def navigation() -> list[dict[str, Any]]:
    """The sections in the order in which a new user needs them. Folders without a name here come last."""
    known = [folder for _, folder in _SECTIONS]
    others = sorted({path.parent.name for path in DOCS.glob("*/*.md")} - set(known))
    nav: list[dict[str, Any]] = [{"Home": "README.md"}]
    for name, folder in (*_SECTIONS, *((other.capitalize(), other) for other in others)):
        pages = _by_topic() if folder == "howto" else [f"{folder}/{page.name}" for page in _pages_in(folder)]
        nav.append({name: [f"{folder}/README.md", *pages]})
    return nav


def _by_topic() -> list[Any]:
    return [{topic: [f"howto/{page}.md" for page in pages]} for topic, pages in pages_by_topic().items()]


def _pages_in(folder: str) -> list[Path]:
    """The pages of a section in the order of the navigation, its overview left out."""

    def order(page: Path) -> tuple[int, str]:
        first = _FIRST.index(page.stem) if page.stem in _FIRST else len(_FIRST)
        return first, page.name if folder == "adr" else title_of(page).lower()

    return sorted((page for page in (DOCS / folder).glob("*.md") if page.name != "README.md"), key=order)


def _overview(name: str, folder: str) -> str:
    if folder == "howto":
        parts = [(topic, [DOCS / folder / f"{page}.md" for page in pages]) for topic, pages in pages_by_topic().items()]
        rows = [line for topic, pages in parts for line in ("", f"## {topic}", "", *map(_entry, pages))]
    else:
        rows = ["", *(_entry(page) + (f": {lead_of(page)}" if lead_of(page) else "") for page in _pages_in(folder))]
    return "\n".join((f"# {name}", *rows, ""))


def _entry(page: Path) -> str:
    return f"- [{title_of(page)}]({page.name})"


def on_files(files: Files, *, config: Any) -> Files:
    """Add an overview to each section without one, the files outside docs/ that pages link to, and their links."""
    for name, folder in _SECTIONS:
        if not (DOCS / folder / "README.md").exists():
            files.append(File.generated(config, f"{folder}/README.md", content=_overview(name, folder)))
    waiting = [Path(file.abs_src_path) for file in files.documentation_pages() if file.abs_src_path]
    done: set[Path] = set()
    while waiting:
        page = waiting.pop()
        for found in LINK.finditer(without_code(page.read_text())):
            target = _target(page, found[2] or found[5])
            if target is None or target in done or target.is_relative_to(DOCS):
                continue
            done.add(target)
            if target.is_dir():
                files.append(File.generated(config, f"{_place(target)}", content=_listing(target)))
                continue
            files.append(File.generated(config, _place(target), abs_src_path=str(target)))
            if target.suffix == ".md":
                waiting.append(target)
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Turn links between files into links between pages, unescape bars in code in tables, and set the search weight."""
    place = page.file.src_uri
    long = place.startswith(f"{_OUTSIDE}/") or place in _LONG_PAGES
    page.meta["search"] = {"boost": _SMALL if long else _BOOST.get(place.partition("/")[0], 1.0)}
    markdown = _TABLE_LINE.sub(lambda line: _CODE.sub(lambda code: code[0].replace("\\|", "|"), line[0]), markdown)
    origin = ROOT / place.removeprefix(f"{_OUTSIDE}/") if place.startswith(f"{_OUTSIDE}/") else DOCS / place
    blanked = without_code(markdown)
    out, at = [], 0
    for found in LINK.finditer(blanked):
        group = 2 if found[2] else 5
        target = _target(origin, found[group])
        if target is None:
            continue
        anchor = found[group].partition("#")[2]
        new = posixpath.relpath(_place(target), posixpath.dirname(place) or ".") + (f"#{anchor}" if anchor else "")
        out += [markdown[at : found.start(group)], new]
        at = found.end(group)
    return "".join((*out, markdown[at:]))


def _target(page: Path, link: str) -> Path | None:
    """The file or folder of a link, or the README.md of a folder. None for other links."""
    path = link.partition("#")[0]
    if not path or "://" in path or path.startswith(("mailto:", "/")):
        return None
    target = Path(os.path.normpath(page.parent / path))
    if (target / "README.md").is_file():
        target = target / "README.md"
    return target if target.exists() and target.is_relative_to(ROOT) else None


def _place(target: Path) -> str:
    """The path of a repository file in the site's sources."""
    if target.is_relative_to(DOCS):
        place = target.relative_to(DOCS).as_posix()
        return f"{place}/README.md" if target.is_dir() else place
    place = f"{_OUTSIDE}/{target.relative_to(ROOT).as_posix()}"
    return f"{place}/index.md" if target.is_dir() else place


def _listing(folder: Path) -> str:
    names = sorted(path.name + ("/" if path.is_dir() else "") for path in folder.iterdir() if path.name[0] != ".")
    rows = "\n".join(f"- `{name}`" for name in names)
    return f"# {folder.relative_to(ROOT).as_posix()}\n\nA folder of the repository:\n\n{rows}\n"
