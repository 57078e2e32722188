"""Which network plugin is loaded where several are there, on values."""

from __future__ import annotations

from windlass.build.images.check import check_image
from windlass.build.images.facts import MARK, ImageReport, parse_probe
from windlass.node.libs.closure import ImagePlugin, choose_plugins, plugin_family
from windlass.sites.catalog import load_site

OFI = ImagePlugin(("/opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so",), True)
HPCX = ImagePlugin(("/opt/hpcx/nccl_rdma_sharp_plugin/lib/libnccl-net.so",), False)


def test_names_of_plugins_are_known() -> None:
    assert plugin_family("libnccl-net.so") == plugin_family("libnccl-net-ofi.so.0") == "nccl"
    assert plugin_family("librccl-net.so") == "rccl"
    assert plugin_family("libnccl.so.2") == plugin_family("libnccl-tuner-ofi.so") == ""


def test_a_plugin_that_is_not_linked_with_libfabric_is_an_error_on_slingshot_alone() -> None:
    for site, other, severity in (
        ("elcapitan", ("/opt/rccl/librccl-net.so",), "error"),
        ("elcapitan", (), "ok"),
        ("workstation", ("/opt/rccl/librccl-net.so",), "ok"),
    ):
        report = ImageReport(
            image="x", kind="folder", glibc="2.35", plugins=("/opt/rccl/librccl-net.so",), other_plugins=other
        )
        found = check_image(report, load_site(site), None)
        assert [one.severity for one in found.findings if one.kind == "plugin"] == [severity], (site, other)


def test_the_images_plugin_for_libfabric_hides_the_others() -> None:
    chosen = choose_plugins((), (HPCX, OFI), [HPCX.paths[0]], True)
    assert [(link.name, link.target) for link in chosen.links] == [("libnccl-net.so", OFI.paths[0])]
    assert chosen.hidden == HPCX.paths
    assert not chosen.warnings


def test_a_single_plugin_that_the_loader_finds_is_left_alone() -> None:
    only = ImagePlugin(("/usr/lib/libnccl-net-ofi.so", "/usr/lib/libnccl-net.so"), True)
    assert choose_plugins((), (only,), only.paths, True) == ((), (), ())
    unseen = choose_plugins((), (only,), ["/usr/lib/libnccl-net-ofi.so"], True)
    assert unseen.links[0].target == "/usr/lib/libnccl-net-ofi.so", "NCCL opens it by another name"


def test_a_plugin_of_the_host_hides_all_of_the_image_under_the_name_that_is_opened() -> None:
    chosen = choose_plugins(("libfabric.so.1", "libnccl-net-ofi.so"), (HPCX, OFI), [HPCX.paths[0]], True)
    assert [(link.name, link.target) for link in chosen.links] == [("libnccl-net.so", "libnccl-net-ofi.so")]
    assert chosen.hidden == (*HPCX.paths, *OFI.paths)
    assert choose_plugins(("libnccl-net.so",), (), (), True).links == ()


def test_other_networks_keep_the_images_choice() -> None:
    assert choose_plugins((), (HPCX, OFI), [HPCX.paths[0]], False) == ((), (), ())


def test_an_image_without_a_plugin_for_libfabric_and_one_tied_to_its_own_libfabric_are_said() -> None:
    assert "no plugin of the image uses libfabric" in choose_plugins((), (HPCX,), (), True).warnings[0]
    tied = ImagePlugin(("/opt/x/libnccl-net.so",), True, "/opt/amazon/efa/lib")
    assert "by its RPATH" in choose_plugins((), (tied,), (), True).warnings[0]
    unread = ImagePlugin(("/opt/x/libnccl-net.so",), None)
    assert choose_plugins((), (unread,), (), True) == ((), (), ()), "not known: nothing is changed"


def test_each_family_has_its_own() -> None:
    rccl = ImagePlugin(("/opt/rccl-plugin/lib/librccl-net-ofi.so",), True)
    chosen = choose_plugins((), (OFI, rccl), (), True)
    assert {link.name: link.target for link in chosen.links} == {
        "libnccl-net.so": OFI.paths[0],
        "librccl-net.so": rccl.paths[0],
    }


def test_the_probe_of_a_started_image_tells_plugins_and_variables() -> None:
    said = f"""
{MARK} library /usr/lib/libfabric.so.1
{MARK} plugin 0 /opt/x/libnccl-net-ofi.so /opt/x/libnccl-net-ofi.so
{MARK} plugin 0 /opt/x/libnccl-net-ofi.so /opt/x/libnccl-net.so
{MARK} plugin 1 /opt/hpcx/lib/libnccl-net.so /opt/hpcx/lib/libnccl-net.so
{MARK} plugin 127 /opt/y/librccl-net.so /opt/y/librccl-net.so
{MARK} plugin 0 /opt/a b
{MARK} variable NCCL_NET_PLUGIN=spcx
{MARK} variable FI_PROVIDER_PATH=
{MARK} end
"""
    facts = parse_probe(said, "x86_64")
    assert facts is not None
    assert facts.environment == {"NCCL_NET_PLUGIN": "spcx"}
    assert facts.plugins == (
        ImagePlugin(("/opt/x/libnccl-net-ofi.so", "/opt/x/libnccl-net.so"), True),
        ImagePlugin(("/opt/hpcx/lib/libnccl-net.so",), False),
        ImagePlugin(("/opt/y/librccl-net.so",), None),
    )
