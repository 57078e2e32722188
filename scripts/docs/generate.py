#!/usr/bin/env python3
"""Writes the documents, and parts of documents, that are made from the code and the catalog. `make docs` runs it.

A page that people write has the generated part between two marks; everything outside of them is theirs.
`--check` writes nothing and names what is out of date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from by_hand_page import by_hand_page
from json_page import json_page
from markdown_links import DOCS, ROOT
from options_part import options_part
from runtime_page import runtime_page
from schema_page import job_page, schema_page
from site_pages import catalog_sites, overview, site_part, site_picture
from sources_page import sources_page
from wire_page import wire_part

BEGIN = "<!-- scripts/docs/generate.py writes from here -->"
END = "<!-- to here -->"


def generated() -> Iterator[tuple[Path, str]]:
    """Each file with the text that it should have."""
    reference = DOCS / "reference"
    yield reference / "site-schema.md", schema_page()
    yield reference / "job-file.md", job_page()
    yield reference / "json.md", json_page()
    yield reference / "runtime.md", runtime_page()
    yield reference / "commands.md", _with_part(reference / "commands.md", options_part())
    yield reference / "wire-protocol.md", _with_part(reference / "wire-protocol.md", wire_part())
    yield DOCS / "explanation" / "by-hand.md", by_hand_page()
    sites = catalog_sites()
    yield reference / "sources.md", sources_page(sites)
    yield DOCS / "sites" / "README.md", overview(sites)
    for site in sites:
        page = DOCS / "sites" / f"{site.name}.md"
        yield page, _with_part(page, site_part(site))
        picture = site_picture(site)
        if picture:
            yield DOCS / "sites" / "maps" / f"{site.name}.svg", picture


def _with_part(page: Path, part: str) -> str:
    """The page with its generated part renewed, or added to its end. A new machine begins with its title alone."""
    text = page.read_text() if page.exists() else f"# {page.stem}\n"
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before.rstrip()}\n\n{BEGIN}\n\n{part}\n{END}\n{after.lstrip()}"


def out_of_date() -> list[Path]:
    return [path for path, text in generated() if not path.exists() or path.read_text() != text]


def main() -> int:
    stale = out_of_date()
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"out of date: {path.relative_to(ROOT)}")
        return 1 if stale else 0
    texts = dict(generated())
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(texts[path])
        print(f"written: {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
