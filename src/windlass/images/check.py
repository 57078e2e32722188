"""Whether an image will use a site's network: findings about what is in it, each with a remedy, and a verdict. Pure."""

from __future__ import annotations

from typing import Literal

import msgspec

from windlass.images.facts import ImageReport
from windlass.images.inject import Injection
from windlass.model.site import Site

Level = Literal["ok", "note", "warning", "error"]
_ORDER: tuple[Level, ...] = ("ok", "note", "warning", "error")
_TCP = "NCCL would fall back to TCP, ten times slower, without a word"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that matters, and what to do about it."""

    level: Level
    topic: str
    text: str
    remedy: str = ""


class ImageCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The whole check; `verdict` is the worst level of its findings."""

    report: ImageReport
    site: str
    findings: tuple[Finding, ...]
    verdict: Level
    injection: Injection | None = None


def check_image(report: ImageReport, site: Site | None, injection: Injection | None) -> ImageCheck:
    """Hold the image against the site, or against any site where none is named. `injection` is what the host would add,
    where it could be looked at."""
    provider = site.file.host_libraries.provider if site else ""
    findings = [
        _libc(report),
        _machine(report, site),
        *_fabric(report, provider, injection),
        *_plugin(report, provider),
        *_mpi(report),
        *_compat(report),
    ]
    kept = tuple(finding for finding in findings if finding is not None)
    verdict: Level = max((finding.level for finding in kept), key=_ORDER.index)
    return ImageCheck(
        report=report, site=site.name if site else "", findings=kept, verdict=verdict, injection=injection
    )


def _libc(report: ImageReport) -> Finding:
    if report.libc == "musl":
        return Finding(
            level="error",
            topic="glibc",
            text="musl and no glibc: neither drivers nor network libraries of a host work in it",
            remedy="take an image of Debian, Ubuntu, SUSE or Red Hat",
        )
    if not report.glibc:
        return Finding(
            level="warning",
            topic="glibc",
            text="no C library was found: is this a whole image?",
            remedy="look at the image as the runtime sees it",
        )
    return Finding(level="ok", topic="glibc", text=report.glibc)


def _machine(report: ImageReport, site: Site | None) -> Finding | None:
    wanted = site.file.node.arch if site else ""
    if wanted and report.machine and report.machine != wanted:
        return Finding(
            level="error",
            topic="machine",
            text=f"the image is for {report.machine}, the nodes of {site.name if site else ''} are {wanted}",
            remedy=f"build or pull it for {wanted}",
        )
    return Finding(level="ok", topic="machine", text=report.machine) if report.machine else None


def _fabric(report: ImageReport, provider: str, injection: Injection | None) -> list[Finding]:
    found: list[Finding] = []
    if report.libfabric:
        text = f"{report.libfabric[0]} ({report.libfabric_version or 'version unknown'})"
        found.append(
            Finding(level="ok", topic="libfabric", text=f"{text}, providers: {', '.join(report.providers) or 'none'}")
        )
    for name, by in report.missing.items():
        found.append(
            Finding(
                level="error",
                topic="libraries",
                text=f"{by} needs {name}, which the image lacks",
                remedy="install it in the image, or bring the host's: --host-libs DIR",
            )
        )
    if not provider:
        return found
    if provider in report.providers:
        return [*found, Finding(level="ok", topic="strategy", text=f"baked: its own libfabric has {provider}")]
    lack = f"its libfabric has no {provider} provider" if report.libfabric else "it has no libfabric"
    return [*found, _strategy(lack, provider, injection)]


def _strategy(lack: str, provider: str, injection: Injection | None) -> Finding:
    if injection is not None and injection.strategy == "refused":
        return Finding(
            level="error",
            topic="strategy",
            text=f"{lack}, and the host's does not fit: {'; '.join(injection.refused)}",
            remedy=injection.remedy,
        )
    if injection is not None and injection.strategy == "host-inject":
        going = [library.name for library in injection.libraries if library.where != "image"]
        text = f"host-inject: {lack}; {', '.join(going)} come from this host"
        return Finding(level="ok", topic="strategy", text=text)
    return Finding(
        level="note",
        topic="strategy",
        text=f"host-inject: {lack}; `windlass run --container` brings the host's, which each node looks for",
        remedy=f"`windlass image inject` on a node shows what goes in; an image with {provider}: windlass image build",
    )


def _plugin(report: ImageReport, provider: str) -> list[Finding]:
    found: list[Finding] = []
    forced = report.environment.get("NCCL_NET_PLUGIN")
    if len(report.plugins) > 1:
        found.append(
            Finding(
                level="warning",
                topic="plugin",
                text=f"{len(report.plugins)} network plugins of NCCL or RCCL compete: {', '.join(report.plugins)}",
                remedy="keep one: remove the others from the image, or name it with --env NCCL_NET_PLUGIN=PATH",
            )
        )
    elif report.plugins:
        found.append(Finding(level="ok", topic="plugin", text=report.plugins[0]))
    elif provider:
        found.append(
            Finding(
                level="warning",
                topic="plugin",
                text=f"no network plugin of NCCL or RCCL (libnccl-net*.so, librccl-net*.so): {_TCP}",
                remedy="windlass image build --with ofi, or a folder that has it: --host-libs DIR",
            )
        )
    if forced:
        found.append(
            Finding(
                level="warning",
                topic="plugin",
                text=f"the image sets NCCL_NET_PLUGIN={forced}: NCCL takes that one and no other",
                remedy="--unset NCCL_NET_PLUGIN, unless it is the one for this network",
            )
        )
    return found


def _mpi(report: ImageReport) -> list[Finding]:
    kinds = {"12": "MPICH's ABI", "40": "Open MPI"}
    return [
        Finding(level="ok", topic="MPI", text=f"{path} ({kinds.get(path.rsplit('.', 1)[1], 'another ABI')})")
        for path in report.mpi
    ]


def _compat(report: ImageReport) -> list[Finding]:
    if not report.cuda_compat:
        return []
    text = f"CUDA compatibility libraries for driver {report.cuda_compat}: only for hosts with an older driver"
    return [Finding(level="note", topic="CUDA", text=text, remedy="on a newer driver keep them out of LD_LIBRARY_PATH")]


def check_text(check: ImageCheck) -> str:
    """For people."""
    report = check.report
    about = ", ".join(part for part in (report.kind, report.system, f"{report.libraries} libraries") if part)
    lines = [f"{report.image}: {about}", ""]
    for finding in check.findings:
        mark = "" if finding.level == "ok" else f"{finding.level}: "
        lines.append(f"  {finding.topic:<10} {mark}{finding.text}")
        if finding.remedy:
            lines.append(f"  {'':<10} -> {finding.remedy}")
    where = f" on {check.site}" if check.site else ""
    return "\n".join([*lines, "", f"verdict{where}: {check.verdict}"])
