"""Which library goes where, on values."""

from __future__ import annotations

from windlass.node.libs.closure import Closure, Library, newest, version_key
from windlass.node.libs.decide import ImageFacts, ImageLibrary, decide, facts_as_json, facts_from_json
from windlass.node.libs.elf import Elf


def _elf(needs: dict[str, tuple[str, ...]] | None = None, defs: tuple[str, ...] = (), machine: str = "x86_64") -> Elf:
    return Elf(machine, 64, "", tuple(needs or ()), (), (), needs or {}, defs)


def _host(*libraries: tuple[str, Elf], missing: dict[str, str] | None = None) -> Closure:
    found = {name: Library(name, f"/host/{name}", elf, "libfabric.so.1") for name, elf in libraries}
    return Closure(found, missing or {})


def _image(libc: str = "glibc", glibc: str = "2.31", **libraries: tuple[str, ...] | None) -> ImageFacts:
    named = {name.replace("_", "."): versions for name, versions in libraries.items()}
    found = {name: ImageLibrary(f"/usr/lib/{name}", versions) for name, versions in named.items()}
    return ImageFacts("x86_64", glibc, libc, found, ())


FABRIC = ("libfabric.so.1", _elf({"libc.so.6": ("GLIBC_2.17",), "libz.so.1": ("ZLIB_1.2",)}))


def _where(host: Closure, image: ImageFacts) -> dict[str, str]:
    decision = decide(host, image)
    assert not decision.refused, decision
    return {entry.name: entry.where for entry in decision.placed}


def test_only_network_libraries_go_in_front_and_only_what_is_lacking_behind() -> None:
    host = _host(FABRIC, ("libz.so.1", _elf(defs=("ZLIB_1.2",))), ("libcxi.so.1", _elf()), ("libc.so.6", _elf()))
    assert _where(host, _image()) == {
        "libfabric.so.1": "front",
        "libz.so.1": "behind",
        "libcxi.so.1": "front",
        "libc.so.6": "image",
    }
    assert _where(host, _image(libz_so_1=("ZLIB_1.2",)))["libz.so.1"] == "image"
    assert _where(host, _image(libz_so_1=None))["libz.so.1"] == "image"


def test_a_dependency_that_is_too_old_in_the_image_is_replaced_only_by_one_that_offers_all_of_it() -> None:
    newer = _host(FABRIC, ("libz.so.1", _elf(defs=("ZLIB_1.1", "ZLIB_1.2"))))
    assert _where(newer, _image(libz_so_1=("ZLIB_1.1",)))["libz.so.1"] == "front"
    other = decide(_host(FABRIC, ("libz.so.1", _elf(defs=("ZLIB_1.2",)))), _image(libz_so_1=("OWN_1",)))
    assert "lacks ZLIB_1.2" in other.refused[0]
    assert "it lacks OWN_1" in other.refused[0]


def test_a_library_that_wants_a_newer_glibc_is_refused_by_name() -> None:
    host = _host(FABRIC, ("libz.so.1", _elf({"libm.so.6": ("GLIBC_2.38", "GLIBC_2.4"), "x": ("GLIBC_2.99",)})))
    decision = decide(host, _image())
    assert decision.refused == ("/host/libz.so.1 needs glibc 2.38, the image has 2.31",)
    assert "windlass image build" in decision.remedy
    assert not decide(host, _image(glibc="2.38")).refused
    assert not decide(host, _image(glibc="2.31", libz_so_1=("ZLIB_1.2",))).refused, "the image's own is taken"
    assert not decide(host, _image(glibc="")).refused, "not known: nothing to hold it against"


def test_what_cannot_work_is_refused_with_a_reason() -> None:
    assert "musl" in decide(_host(FABRIC), _image(libc="musl")).refused[0]
    arm = _host(("libfabric.so.1", _elf(machine="aarch64")))
    assert decide(arm, _image()).refused == ("/host/libfabric.so.1 is for aarch64, the image for x86_64",)
    lost = decide(_host(FABRIC, missing={"libjson-c.so.5": "libfabric.so.1"}), _image(libz_so_1=("ZLIB_1.2",)))
    assert lost.refused == ("libfabric.so.1 needs libjson-c.so.5, which neither the host nor the image has",)


def test_facts_travel_as_json() -> None:
    image = _image(libz_so_1=("ZLIB_1.2",), liba_so=None)
    assert facts_from_json(facts_as_json(image)) == image


def test_versions_are_compared_as_numbers() -> None:
    assert newest(("GLIBC_2.4", "GLIBC_2.31", "GLIBC_PRIVATE", "GLIBC_2.3.4", "CXX_9")) == "2.31"
    assert newest(()) == ""
    assert version_key("2.31") > version_key("2.4")
