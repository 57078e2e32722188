"""The page of everything outside that the catalog and the documents rest on, each with the date it was read. Pure."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from markdown_links import DOCS, ROOT, addresses_of, pages, title_of
from markdown_table import table
from windlass.model.site import Site

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SEEN = Path(__file__).with_name("external_links.toml")
PAGE = DOCS / "reference" / "sources.md"
_HEAD = """# Sources and links, with dates

Advice of sites expires. This page lists what the [catalog](../sites/README.md) and these documents rest on, and when it
was read. `windlass explain NAME` says the source of one setting. Nothing here is fetched when the pages are built.
"""


def dates_of_links() -> dict[str, str]:
    """Address to the date on which somebody last looked at it, as `external_links.toml` says."""
    return {address: str(date) for address, date in tomllib.loads(SEEN.read_text()).items()}


def linked_addresses() -> dict[str, list[Path]]:
    """Addresses outside that the documents and the front pages link to, and where. Pages beside examples and records
    keep their own."""
    found: dict[str, list[Path]] = {}
    for page in pages():
        if page != PAGE and (page.is_relative_to(DOCS) or page.parent == ROOT):
            for address in addresses_of(page.read_text()):
                found.setdefault(address, []).append(page)
    return found


def sources_page(sites: Sequence[Site]) -> str:
    """The whole page."""
    users: dict[tuple[str, str, str], set[str]] = {}
    for site in sites:
        for spec in site.file.sources.values():
            users.setdefault((spec.where, spec.checked, spec.grade), set()).add(site.name)
    rows = [
        (where, checked, grade, ", ".join(f"[{name}](../sites/{name}.md)" for name in sorted(names)))
        for (where, checked, grade), names in sorted(users.items(), key=lambda item: (item[0][0].lower(), item[0][1]))
    ]
    seen = dates_of_links()
    links = [
        (f"<{address}>", seen.get(address, "not yet"), ", ".join(sorted({_page_link(page) for page in where})))
        for address, where in sorted(linked_addresses().items())
    ]
    return "\n".join(
        (
            _HEAD,
            "## Documents that the catalog rests on",
            "",
            *table(("where", "read on", "grade", "machines"), rows),
            "",
            "## Addresses in these documents",
            "",
            *table(("address", "looked at on", "in"), links),
            "",
        )
    )


def _page_link(page: Path) -> str:
    if page.is_relative_to(DOCS):
        return f"[{title_of(page)}](../{page.relative_to(DOCS).as_posix()})"
    return title_of(page)
