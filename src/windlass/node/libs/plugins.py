"""Which network plugin of NCCL or RCCL a rank loads: the one for libfabric, whatever else the image has. Pure.

NCCL opens `libnccl-net.so` (RCCL `librccl-net.so`) by that name alone, so the first folder of the search path decides.
Images bring others under the same name (HPC-X, a vendor's cloud), and some name one in NCCL_NET_PLUGIN. A link of that
name in the job's own folder, which stands first, hides them all. Travels: standard library, Python 3.9.
"""

from __future__ import annotations

import re
from typing import Iterable, List, NamedTuple, Optional, Set, Tuple

FABRIC = "libfabric.so.1"
_FAMILIES = ("nccl", "rccl")
_PLUGIN = re.compile(r"lib(nccl|rccl)-net(?:-[\w-]+)?\.so(?:\.\d+)*\Z")


class ImagePlugin(NamedTuple):
    """A plugin of the image: one file, which may have several names."""

    paths: Tuple[str, ...]
    """Its places in the image, as the loader meets them."""
    uses_fabric: Optional[bool]
    """Whether it is linked with libfabric; None where that could not be read."""
    own_fabric: str = ""
    """Folder of a libfabric that its RPATH names: the loader takes that one before any search path."""


class PluginLink(NamedTuple):
    """A name in the job's folder that leads to a file of the image, or of the same folder."""

    name: str
    target: str
    because: str


class PluginChoice(NamedTuple):
    links: Tuple[PluginLink, ...] = ()
    hidden: Tuple[str, ...] = ()
    """Plugins of the image that are not loaded any more."""
    warnings: Tuple[str, ...] = ()


def plugin_family(name: str) -> str:
    """`nccl` or `rccl` for the file name of a plugin, empty for another."""
    found = _PLUGIN.match(name)
    return found.group(1) if found else ""


def choose_plugins(
    from_host: Iterable[str], of_image: Tuple[ImagePlugin, ...], found_first: Iterable[str], over_fabric: bool
) -> PluginChoice:
    """`from_host`: names of the host's plugins that go in; `found_first`: places of the libraries that the image's
    loader finds; `over_fabric`: the site's network is reached through libfabric."""
    links: List[PluginLink] = []
    hidden: List[str] = []
    warnings: List[str] = []
    first = set(found_first)
    for family in _FAMILIES:
        host = [name for name in from_host if plugin_family(name) == family]
        own = [plugin for plugin in of_image if plugin_family(plugin.paths[0].rpartition("/")[2]) == family]
        if host:
            links += _host_link(family, host)
            hidden += [plugin.paths[0] for plugin in own]
        elif own and over_fabric:
            made = _image_link(family, own, first)
            links += made.links
            hidden += made.hidden
            warnings += made.warnings
    return PluginChoice(tuple(links), tuple(hidden), tuple(warnings))


def _host_link(family: str, names: List[str]) -> List[PluginLink]:
    plain = "lib%s-net.so" % family
    if plain in names:
        return []
    return [PluginLink(plain, names[0], "the collective library opens its plugin by this name")]


def _image_link(family: str, own: List[ImagePlugin], first: Set[str]) -> PluginChoice:
    plain = "lib%s-net.so" % family
    fitting = [plugin for plugin in own if plugin.uses_fabric]
    if not fitting:
        if any(plugin.uses_fabric is None for plugin in own):
            return PluginChoice()
        names = ", ".join(plugin.paths[0] for plugin in own)
        text = "no plugin of the image uses libfabric (%s): %s cannot reach the fabric with it" % (
            names,
            family.upper(),
        )
        return PluginChoice(warnings=(text,))
    chosen = fitting[0]
    others = tuple(plugin.paths[0] for plugin in own if plugin is not chosen)
    taken = [path for path in chosen.paths if path in first and path.endswith("/" + plain)]
    warnings: Tuple[str, ...] = ()
    if chosen.own_fabric:
        warnings = (
            "%s takes the libfabric in %s by its RPATH, whatever the search path says"
            % (chosen.paths[0], chosen.own_fabric),
        )
    if taken and not others:
        return PluginChoice(warnings=warnings)
    because = "the image's plugin for libfabric, found by the name that the collective library opens"
    return PluginChoice((PluginLink(plain, chosen.paths[0], because),), others, warnings)
