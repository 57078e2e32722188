"""Documents that are made from the code and the catalog say what these say now."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable

from generate import BEGIN, END, generated
from looping import each
from markdown_links import DOCS
from schema_page import schema_page
from site_pages import catalog_sites, site_part, site_picture
from sources_page import SEEN, dates_of_links, linked_addresses
from topics import TOPICS, pages_by_topic
from windlass.model.site import Site
from windlass.node.wire import wire
from wire_page import REPLIES, REQUESTS

PLEASE = "out of date; run scripts/docs/generate.py (`make docs` does) and commit what it writes"


def test_generated_documents_are_up_to_date() -> None:
    stale = [str(path) for path, text in generated() if not path.exists() or path.read_text() != text]
    assert not stale, PLEASE


def test_every_site_of_the_catalog_has_a_page_with_people_s_words_before_the_catalog_s() -> None:
    for site in catalog_sites():
        text = (DOCS / "sites" / f"{site.name}.md").read_text()
        assert text.count(BEGIN) == text.count(END) == 1, site.name
        assert len(text.partition(BEGIN)[0].split()) > 20, site.name


def words_of(specs: Iterable[object]) -> list[str]:
    return [str(getattr(spec, "because", "")) for spec in specs]


@each("site", catalog_sites(), ids=lambda site: str(site.name))
def test_a_page_has_every_reason_and_every_source_with_its_date(site: Site) -> None:
    file, part = site.file, " ".join(site_part(site).replace("\\|", "|").split())
    said = words_of((*file.settings, *file.scheduler.directives, *file.launcher.arguments, *file.limits))
    missing = [because for because in said if " ".join(because.split()) not in part]
    assert missing == []
    for key, source in file.sources.items():
        assert f"`{key}`" in part, key
        assert source.checked in part, key
    for queue in file.queues:
        assert f"`{queue.name}`" in part


@each("site", catalog_sites(), ids=lambda site: str(site.name))
def test_the_picture_of_a_node_has_every_core_device_and_interface_once(site: Site) -> None:
    picture = site_picture(site)
    assert bool(picture) == bool(site.file.node.domains)
    if not picture:
        return
    titles = [element.text or "" for element in ET.fromstring(picture).iter("{http://www.w3.org/2000/svg}title")]
    cores = [title for title in titles if title.startswith("core ")]
    assert len(cores) == len(set(cores)) == site.file.node.cores
    labels = [element.text for element in ET.fromstring(picture).iter("{http://www.w3.org/2000/svg}text")]
    for nic in (*site.file.node.nics, *(nic for domain in site.file.node.domains for nic in domain.nics)):
        assert labels.count(nic) == 1, nic


def test_every_address_that_a_document_links_to_has_a_date() -> None:
    seen, linked = dates_of_links(), linked_addresses()
    undated = {address: [str(page) for page in pages] for address, pages in linked.items() if address not in seen}
    assert undated == {}, f"enter the date on which you looked at them in {SEEN}"
    assert sorted(set(seen) - set(linked)) == [], f"nobody links to these any more: take them out of {SEEN}"
    assert all(re.fullmatch(r"20\d\d-\d\d-\d\d", date) for date in seen.values())


def test_every_kind_of_frame_is_in_the_table_and_explained() -> None:
    kinds = {name: value for name, value in vars(wire).items() if re.fullmatch(r"[A-Z][A-Z_]*", name)}
    numbers = {name for name, value in kinds.items() if isinstance(value, int) and "BYTES" not in name}
    numbers -= {"BATCH_OBJECTS"}
    assert numbers == {*REQUESTS, *REPLIES}
    people, _, table = (DOCS / "reference" / "wire-protocol.md").read_text().partition(BEGIN)
    for name in numbers:
        assert f"| `{name}` |" in people, name
        assert f"| `{name}` | {kinds[name]} |" in table, name


def test_the_schema_has_every_table_and_every_key() -> None:
    page = schema_page()
    for key in ("gpu_request", "nodes_min", "because", "cluster_names", "activate_images", "nic_by_core", "time_max"):
        assert f"| `{key}` |" in page, key
    assert "| `origin` |" not in page  # the merge fills it in; a file may not
    assert "`slurm`, `pbs`, `flux`, `none`" in page
    assert "How the allocation asks for devices" in page


def test_every_how_to_page_is_once_in_the_menu() -> None:
    listed = sorted(page for pages in pages_by_topic().values() for page in pages)
    assert listed == sorted(page.stem for page in (DOCS / "howto").glob("*.md") if page.name != "README.md")
    gone = [page for pages in TOPICS.values() for page in pages if page not in listed]
    assert gone == []
