"""Check whether an image will use a site's network: findings with remedies, and a verdict. Pure."""

from __future__ import annotations

import re

import msgspec

from windlass.build.images.facts import ImageReport
from windlass.build.images.inject import Injection
from windlass.model.finding import Finding, Severity, worst_severity
from windlass.model.site import Site
from windlass.node.libs.variables import judge_compat

_BRINGS_PLUGIN = re.compile(r"aws_ofi_nccl|nccl-plugin|--nccl\b|rccl-net-plugin")
"""Site mechanisms that also add the collective library's plugin."""
_TCP = "NCCL would use TCP without a message, ten times slower"


class ImageCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The whole check: the document of `image check --json`. `severity` is the worst of its findings."""

    version: int = 2
    report: ImageReport
    site: str
    findings: tuple[Finding, ...]
    severity: Severity
    injection: Injection | None = None


def check_image(report: ImageReport, site: Site | None, injection: Injection | None, driver: str = "") -> ImageCheck:
    """Check the image for the site, or for any site if none is named.

    `injection` is what the host would add, if the host could be examined. `driver` is the version of its NVIDIA driver.
    """
    provider = site.file.host_libraries.provider if site else ""
    findings = [
        _libc(report),
        _machine(report, site),
        *_fabric(report, provider, injection),
        *_plugin(report, provider, injection),
        *_mpi(report),
        *_compat(report, driver),
    ]
    kept = tuple(finding for finding in findings if finding is not None)
    return ImageCheck(
        report=report, site=site.name if site else "", findings=kept, severity=worst_severity(kept), injection=injection
    )


def _libc(report: ImageReport) -> Finding:
    if report.libc == "musl":
        text = "musl and no glibc: neither drivers nor network libraries of a host work in it"
        return Finding("glibc", "error", text, "use an image of Debian, Ubuntu, SUSE or Red Hat")
    if not report.glibc:
        text = "no C library was found: the image may be incomplete"
        return Finding("glibc", "warning", text, "check the image in the form that the runtime uses")
    return Finding("glibc", "ok", report.glibc)


def _machine(report: ImageReport, site: Site | None) -> Finding | None:
    if site and site.file.node.arch and report.machine and report.machine != site.file.node.arch:
        wanted = site.file.node.arch
        text = f"the image is for {report.machine}, the nodes of {site.name} are {wanted}"
        return Finding("machine", "error", text, f"build or pull it for {wanted}")
    return Finding("machine", "ok", report.machine) if report.machine else None


def _fabric(report: ImageReport, provider: str, injection: Injection | None) -> list[Finding]:
    found: list[Finding] = []
    if report.libfabric:
        text = f"{report.libfabric[0]} ({report.libfabric_version or 'version unknown'})"
        found.append(Finding("libfabric", "ok", f"{text}, providers: {', '.join(report.providers) or 'none'}"))
    remedy = "install it in the image, or bring the host's: --host-libs DIR"
    for name, by in report.missing.items():
        found.append(Finding("libraries", "error", f"{by} needs {name}, which the image lacks", remedy))
    if not provider:
        return found
    if injection is not None and injection.site_means:
        return [*found, Finding("strategy", "ok", f"host-inject: {injection.because}")]
    if provider in report.providers:
        return [*found, Finding("strategy", "ok", f"baked: its own libfabric has {provider}")]
    lack = f"its libfabric has no {provider} provider" if report.libfabric else "it has no libfabric"
    return [*found, _strategy(lack, provider, injection)]


def _strategy(lack: str, provider: str, injection: Injection | None) -> Finding:
    if injection is not None and injection.strategy == "refused":
        text = f"{lack}, and the host's does not fit: {'; '.join(injection.refused)}"
        return Finding("strategy", "error", text, injection.remedy)
    if injection is not None and injection.strategy == "host-inject":
        going = [library.name for library in injection.libraries if library.where != "image"]
        return Finding("strategy", "ok", f"host-inject: {lack}; {', '.join(going)} come from this host")
    text = f"host-inject: {lack}; `windlass run --container` brings the host's, which each node finds"
    remedy = f"`windlass image inject` on a node shows what is added; an image with {provider}: windlass image build"
    return Finding("strategy", "note", text, remedy)


def _plugin(report: ImageReport, provider: str, injection: Injection | None) -> list[Finding]:
    found: list[Finding] = []
    forced = report.environment.get("NCCL_NET_PLUGIN")
    if len(report.plugins) > 1:
        found.append(_competing(report, injection))
    elif report.plugins and provider and report.other_plugins:
        text = f"{report.plugins[0]} is not linked with libfabric, so it does not use {provider}: {_TCP}"
        remedy = "windlass image build --with ofi, or a folder with the site's plugin: --host-libs DIR"
        found.append(Finding("plugin", "error", text, remedy))
    elif report.plugins:
        found.append(Finding("plugin", "ok", report.plugins[0]))
    elif injection is not None and any(map(_BRINGS_PLUGIN.search, injection.site_means)):
        found.append(Finding("plugin", "ok", "the image has none; the site brings its own"))
    elif provider:
        text = f"no network plugin of NCCL or RCCL (libnccl-net*.so, librccl-net*.so): {_TCP}"
        remedy = "windlass image build --with ofi, or a folder that has it: --host-libs DIR"
        found.append(Finding("plugin", "warning", text, remedy))
    for text in injection.warnings if injection is not None else ():
        found.append(Finding("plugin", "warning", text, "`windlass image build` makes one"))
    if forced and not _is_unset(injection, "NCCL_NET_PLUGIN"):
        text = f"the image sets NCCL_NET_PLUGIN={forced}: NCCL uses only that one"
        remedy = "--env ~NCCL_NET_PLUGIN, unless it is the one for this network"
        found.append(Finding("plugin", "warning", text, remedy))
    return found


def _competing(report: ImageReport, injection: Injection | None) -> Finding:
    text = f"{len(report.plugins)} network plugins of NCCL or RCCL compete: {', '.join(report.plugins)}"
    if injection is not None and injection.hidden:
        text += f"; `windlass run` hides {', '.join(injection.hidden)}"
        return Finding("plugin", "note", text, "for other ways to start it, remove these from the image")
    remedy = "keep one: remove the others from the image, or name it with --env NCCL_NET_PLUGIN=PATH"
    return Finding("plugin", "warning", text, remedy)


def _is_unset(injection: Injection | None, name: str) -> bool:
    changes = injection.variables if injection is not None else ()
    return any(change.name == name and change.how == "unset" for change in changes)


def _mpi(report: ImageReport) -> list[Finding]:
    kinds = {"12": "MPICH's ABI", "40": "Open MPI"}
    return [Finding("mpi", "ok", f"{path} ({kinds.get(path.rsplit('.', 1)[1], 'another ABI')})") for path in report.mpi]


def _compat(report: ImageReport, driver: str) -> list[Finding]:
    """Check CUDA's forward compatibility: the libraries of a newer driver, for hosts with an older one.

    If the host's driver is as new as these libraries, they break it.
    """
    if not report.cuda_compat:
        return []
    in_path = any("/compat" in folder for folder in report.environment.get("LD_LIBRARY_PATH", "").split(":"))
    text = f"compatibility libraries of driver {report.cuda_compat}"
    found = judge_compat(report.cuda_compat, driver)
    if found.verdict == "needed":
        where = (
            "" if in_path else "; `windlass run --container` puts them first where it brings in the host's libraries"
        )
        return [Finding("cuda", "ok", f"{text}, needed: {found.because}{where}")]
    if found.verdict == "harmful" and in_path:
        remedy = "remove them from LD_LIBRARY_PATH in the image; `windlass run` does where it brings in libraries"
        return [Finding("cuda", "warning", f"{text} in LD_LIBRARY_PATH: {found.because}", remedy)]
    if found.verdict:
        return [Finding("cuda", "ok", f"{text}, not needed: {found.because}")]
    remedy = "check it on a node; on a driver as new as that keep them out of LD_LIBRARY_PATH"
    return [Finding("cuda", "note", f"{text}: only for hosts with an older driver", remedy)]
