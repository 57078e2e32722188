"""The frame of a page: its style in light, dark and print, and figures with captions."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from windlass.base.pages.svg import STYLE

_STYLE = (
    STYLE
    + """
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 32px 24px 64px; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 18px; margin: 40px 0 8px; }
p.lead, figcaption, .soft { color: var(--soft); }
ul.verdicts { list-style: none; padding: 0; margin: 12px 0; }
ul.verdicts li { padding: 6px 12px; margin: 6px 0; background: var(--card); border-left: 4px solid var(--c5); }
li.normal { border-color: var(--good) !important; } li.low { border-color: var(--warn) !important; }
li.bad { border-color: var(--bad) !important; }
li b { display: inline-block; min-width: 5.5em; }
li.normal b { color: var(--good); } li.low b { color: var(--warn); } li.bad b { color: var(--bad); }
figure { margin: 16px 0 24px; } svg { width: 100%; max-width: 860px; height: auto; display: block; }
pre { background: var(--card); padding: 12px 16px; overflow-x: auto; font: 12.5px/1.45 ui-monospace, monospace; }
table { border-collapse: collapse; font-size: 14px; } td, th { padding: 3px 16px 3px 0; text-align: left;
  vertical-align: top; overflow-wrap: anywhere; } th { color: var(--soft); font-weight: 500; white-space: nowrap; }
code { font: 12.5px ui-monospace, monospace; overflow-wrap: anywhere; }
details { margin: 8px 0; } summary { cursor: pointer; color: var(--soft); }
@media print { main { max-width: none; padding: 0; } }
"""
)


def whole_page(title: str, parts: Sequence[str]) -> str:
    """The page as one file. `title` is text, `parts` are HTML."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{escape(title)}</h1>\n" + "\n".join(parts) + "\n</main>\n</body>\n</html>\n"
    )


def figures(drawn: Sequence[tuple[str, str]]) -> list[str]:
    """Figures of caption and drawing."""
    return [f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>" for caption, svg in drawn]
