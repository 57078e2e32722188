"""Every link between documents leads to a file, and to a heading where it names one. Needs no generator."""

from __future__ import annotations

from pathlib import Path

from markdown_links import Link, anchors_of, heading_slug, links_of, pages, problem_of


def test_every_link_of_the_documents_leads_somewhere() -> None:
    found = [link for page in pages() for link in links_of(page)]
    broken = [f"{link.page}:{link.line}: {link.target}: {problem_of(link)}" for link in found if problem_of(link)]
    assert broken == []
    assert len(found) > 100


def test_a_missing_file_and_a_missing_heading_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A title\n\n## It's here, twice\n\n## It's here, twice\n\n```\n# no heading\n[x](nowhere.md)\n```\n"
    )
    assert anchors_of(page) == {"a-title", "its-here-twice", "its-here-twice-1"}
    assert links_of(page) == []
    assert problem_of(Link(page, 1, "nowhere.md")) == "no such file"
    assert problem_of(Link(page, 1, "page.md#no-heading")) == "no heading #no-heading there"
    assert problem_of(Link(page, 1, "#a-title")) == ""
    assert problem_of(Link(page, 1, "https://example.org/x")) == ""


def test_a_link_over_two_lines_and_in_code_is_read_as_github_reads_it(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text('see [two\nlines](a.md#b) and `[code](c.md)` <img src="d.png">\n')
    assert [(link.line, link.target) for link in links_of(page)] == [(2, "a.md#b"), (2, "d.png")]
    assert heading_slug("`--cache`: what, and [why](x.md)?") == "--cache-what-and-why"
