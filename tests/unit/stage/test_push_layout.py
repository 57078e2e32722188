"""How staged files are cut into blocks and who hands them to whom: pure, and the same on every node."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looping import each
from windlass.node.cache.keys import Pin
from windlass.node.cache.roots import Root
from windlass.node.cache.source import Source
from windlass.node.stage.layout import (
    Item,
    Layout,
    LayoutError,
    cut,
    make_trees,
    parse_items,
    survey,
)
from windlass.node.stage.stage import share

MIB = 1 << 20


def item(size: int, source: int = 0, path: bytes = b"f") -> Item:
    return Item(source, path, stat.S_IFREG | 0o644, Pin(size, 1, 2), None)


def folder(source: int, path: bytes) -> Item:
    return Item(source, path, stat.S_IFDIR | 0o755, Pin(0, 0, 0), None)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1)), max_size=30))
def test_blocks_hold_every_byte_once_and_one_source_each(sizes: list[tuple[int, int]]) -> None:
    items = [item(size, source) for size, source in sorted(sizes, key=lambda one: one[1])]
    blocks = cut(items, 3)
    seen = {(part.item, part.chunk * 3 + at) for block in blocks for part in block.parts for at in range(part.length)}
    assert seen == {(number, at) for number, one in enumerate(items) for at in range(one.pin.size)}
    assert sum(block.length for block in blocks) == len(seen)
    for block in blocks:
        assert 0 < block.length <= 3 and {items[part.item].source for part in block.parts} == {block.source}
        starts = [part.start for part in block.parts]
        assert starts == sorted(starts) and starts[0] == 0


def test_small_files_share_a_block() -> None:
    layout = Layout([item(1000, path=b"%d" % number) for number in range(500)], 1)
    assert len(layout.blocks) == 1


@given(st.integers(0, 70), st.integers(1, 9))
def test_place_and_index_are_each_others_inverse(blocks: int, stripes: int) -> None:
    layout = Layout([item(blocks * MIB)] if blocks else [], stripes)
    found = [layout.index(stripe, at) for stripe in range(stripes) for at in range(layout.count(stripe))]
    assert sorted(found) == list(range(blocks))
    assert all(layout.index(*layout.place(index)) == index for index in range(blocks))


@each("one_reader", [False, True])
@each("nodes", [1, 2, 3, 5, 8, 16, 32, 33, 100, 1000])
def test_every_stripe_has_one_reader_and_reaches_all(nodes: int, one_reader: bool) -> None:
    shape = make_trees(nodes, one_reader=one_reader)
    for stripe in range(shape.stripes):
        ways = [shape.route(node, stripe) for node in range(nodes)]
        readers = [node for node, way in enumerate(ways) if not way]
        assert len(readers) == 1 and (not one_reader or readers == [0])
        for node, way in enumerate(ways):
            assert node not in way
            assert not way or node in shape.children(way[0], stripe), "a parent knows whom to wait for"
            at, steps = node, 0
            while ways[at]:
                at, steps = ways[at][0], steps + 1
                assert steps <= nodes, "asking never goes in a circle"


@each("one_reader", [False, True])
@each("nodes", range(2, 33))
def test_up_to_32_nodes_no_link_carries_a_byte_twice(nodes: int, one_reader: bool) -> None:
    shape = make_trees(nodes, one_reader=one_reader)
    for node in range(nodes):
        assert sum(len(shape.children(node, stripe)) for stripe in range(shape.stripes)) <= shape.stripes


def test_layout_travels_with_names_that_are_not_text() -> None:
    items = [
        *(folder(0, b""), folder(0, b"bad\xff"), item(3, path=b"bad\xff/\n")),
        *(folder(1, b""), Item(1, b"l", stat.S_IFLNK | 0o777, Pin(1, -5, 3), b"\xfe")),
    ]
    assert parse_items(Layout(items, 1).packed) == items


@each("path", [b"../up", b"a/../../b", b"/etc/passwd", b"a//b", b"nul\0"])
def test_layout_that_leads_out_of_its_place_is_refused(path: bytes) -> None:
    with pytest.raises(LayoutError):
        parse_items(Layout([folder(0, b""), item(1, path=path)], 1).packed)


def test_layout_that_writes_below_a_link_or_a_file_is_refused() -> None:
    link = Item(0, b"a", stat.S_IFLNK | 0o777, Pin(1, 1, 1), b"/etc")
    for above in (link, item(3, path=b"a"), folder(1, b"a"), item(1, path=b"b")):
        with pytest.raises(LayoutError, match="no folder"):
            parse_items(Layout([folder(0, b""), above, item(1, path=b"a/b")], 1).packed)
    for twice in (link, folder(0, b"a"), item(2, path=b"a")):
        with pytest.raises(LayoutError, match="twice"):
            parse_items(Layout([folder(0, b""), folder(0, b"a"), twice, item(1, path=b"a/b")], 1).packed)


@each(
    "one",
    [
        Item(0, b"a", stat.S_IFREG, Pin(-1, 0, 0), None),
        Item(0, b"a", stat.S_IFREG, Pin(1 << 63, 0, 0), None),
        Item(0, b"a", stat.S_IFREG, Pin(1, 1 << 63, 0), None),
        Item(-1, b"", stat.S_IFREG, Pin(1, 1, 0), None),
        Item(0, b"a", stat.S_IFIFO, Pin(1, 1, 0), None),
        Item(0, b"a", stat.S_IFCHR, Pin(1, 1, 0), None),
        Item(0, b"a", stat.S_IFLNK, Pin(1, 1, 0), b""),
        Item(1, b"", stat.S_IFLNK, Pin(1, 1, 0), b"/etc"),
    ],
)
def test_layout_of_what_cannot_be_copied_is_refused(one: Item) -> None:
    with pytest.raises(LayoutError):
        parse_items(Layout([folder(0, b""), one], 1).packed)


@each("data", [b"", b"x" * 100, Layout([], 1).packed[:-3]])
def test_bytes_that_are_no_layout_are_refused(data: bytes) -> None:
    with pytest.raises(LayoutError):
        parse_items(data)


def test_digest_knows_its_block_and_its_layout() -> None:
    layout, other = Layout([item(2 * MIB)], 1), Layout([item(2 * MIB, path=b"g")], 1)
    data = memoryview(b"x")
    assert len({layout.digest(0, data), layout.digest(1, data), other.digest(0, data)}) == 3


def test_survey_has_the_same_order_wherever_it_is_made(tmp_path: Path) -> None:
    for name in ("b/c/d", "a/x", "a/y", "z"):
        path = tmp_path / "top" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (tmp_path / "top" / "link").symlink_to("z")
    view, real = b"/seen/top", str(tmp_path / "top").encode()
    items = survey([(view, real)], Source((Root(view, real),), 0).read)
    assert [one.path for one in items] == [
        *(b"", b"a", b"b", b"link", b"z", b"a/x", b"a/y", b"b/c", b"b/c/d"),
    ]
    assert items[3].target == b"z" and items[0].is_folder


def test_shares_are_disjoint_and_complete() -> None:
    items = [folder(0, b""), *(item(1, path=b"%d" % number) for number in range(7)), item(1, 1, b""), item(1, 2, b"")]
    parts = [share(items, node, 3) for node in range(3)]
    files = [one for part in parts for one in part if one.is_file]
    assert sorted(files) == sorted(items[1:])
