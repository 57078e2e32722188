"""Signs of a cause in error lines and kernel messages: one table per vendor, for supervision and for explain-log.

A sign names the kind of the cause and how sure it is. A line of a log that the script's own code can bring about never
condemns a node. Signs with `proves` can: only a fault of the hardware brings them about.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal, NamedTuple

Origin = Literal["script", "node", "device", "file system", "network", "job", "unknown"]
"""What is at fault. `job`: what the job asked for or was given (memory, time, disk space)."""

Confidence = Literal["certain", "likely", "possible"]

MEMORY = re.compile(r"OutOfMemoryError|out of memory|MemoryError|bad_alloc|cannot allocate memory", re.IGNORECASE)
DISK = re.compile(r"No space left on device|Disk quota exceeded|out of shared memory", re.IGNORECASE)


class Sign(NamedTuple):
    """One row. `proves`: evidence about the node itself, which no code of the script can cause."""

    name: str
    vendor: Literal["NVIDIA", "AMD", "Intel", "any"]
    origin: Origin
    confidence: Confidence
    text: str
    meaning: str
    remedy: str
    proves: bool = False

    @property
    def pattern(self) -> re.Pattern[str]:
        """Compiled when it is first needed: most runs end well and compile none."""
        return re.compile(self.text, re.IGNORECASE)

    @property
    def title(self) -> str:
        return self.name if self.vendor == "any" else f"{self.name} ({self.vendor})"


_BOUNDS = "look for indices and labels out of range in the script; run once with {}=1 to see the place"
_DOCTOR = "start again; if it happens on the same node in other runs, `windlass doctor --full` checks it"
_SUPPORT = "leave the node out (`windlass nodes list` shows it), and tell the site's support"
_SEES_NONE = "check the device options of the job and of the container, then `windlass doctor`"


def _sign(
    name: str,
    vendor: Literal["NVIDIA", "AMD", "Intel", "any"],
    cause: tuple[Origin, Confidence],
    pattern: str,
    meaning: str,
    remedy: str,
    *,
    proves: bool = False,
) -> Sign:
    return Sign(name, vendor, *cause, pattern, meaning, remedy, proves)


NVIDIA = (
    _sign(
        "ECC error of the device",
        "NVIDIA",
        ("device", "certain"),
        r"uncorrectable (?:ECC|NVLink)|cudaErrorECCUncorrectable|double.bit ECC",
        "the device's memory or link has an error that it cannot correct",
        _SUPPORT,
        proves=True,
    ),
    _sign(
        "device lost",
        "NVIDIA",
        ("device", "certain"),
        r"GPU is lost|fallen off the bus|Unable to determine the device handle for GPU",
        "the node lost its device",
        _SUPPORT,
        proves=True,
    ),
    _sign(
        "assertion in a kernel",
        "NVIDIA",
        ("script", "certain"),
        r"CUDA error: device-side assert|Cuda failure\b.{0,20}device-side assert|cudaErrorAssert",
        "a kernel of the script failed its own check, nearly always an index out of range",
        _BOUNDS.format("CUDA_LAUNCH_BLOCKING"),
    ),
    _sign(
        "illegal memory access",
        "NVIDIA",
        ("script", "likely"),
        r"CUDA error: (?:an illegal|misaligned|invalid program counter)|cudaErrorIllegalAddress|Cuda failure 700\b|"
        r"Cuda failure\b.{0,20}an illegal",
        "a kernel used memory that it must not; code does this far more often than a device",
        _BOUNDS.format("CUDA_LAUNCH_BLOCKING"),
    ),
    _sign(
        "launch failure",
        "NVIDIA",
        ("device", "possible"),
        r"unspecified launch failure|Cuda failure 719|cudaErrorLaunchFailure|CUDA error: unknown error|"
        r"C(?:UBLAS|UDNN)_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR)",
        "a kernel broke off; both code and devices cause this",
        _DOCTOR,
    ),
    _sign(
        "no device",
        "NVIDIA",
        ("device", "possible"),
        r"No CUDA GPUs are available|no CUDA-capable device|CUDA unknown error|CUDA driver initialization failed|"
        r"no NVIDIA driver|busy or unavailable|cudaErrorSystemNotReady|system not yet initialized",
        "the rank sees no usable device",
        _SEES_NONE,
    ),
)
AMD = (
    _sign(
        "ECC error of the device",
        "AMD",
        ("device", "certain"),
        r"hipErrorECCNotCorrectable|uncorrectable ECC error",
        "the device's memory has an error that it cannot correct",
        _SUPPORT,
        proves=True,
    ),
    _sign(
        "assertion in a kernel",
        "AMD",
        ("script", "certain"),
        r"HIP error: device-side assert|hipErrorAssert",
        "a kernel of the script failed its own check, nearly always an index out of range",
        _BOUNDS.format("AMD_SERIALIZE_KERNEL"),
    ),
    _sign(
        "illegal memory access",
        "AMD",
        ("script", "likely"),
        r"HIP error: an illegal|hipErrorIllegalAddress|Memory access fault by GPU|"
        r"HSA_STATUS_ERROR_MEMORY_(?:APERTURE_VIOLATION|FAULT)",
        "a kernel used memory that it must not; code does this far more often than a device",
        _BOUNDS.format("AMD_SERIALIZE_KERNEL"),
    ),
    _sign(
        "launch failure",
        "AMD",
        ("device", "possible"),
        r"hipErrorLaunchFailure|HIP error: unspecified launch|HSA_STATUS_ERROR_(?:EXCEPTION|ILLEGAL_INSTRUCTION)|"
        r"HW Exception by GPU|GPU Hang|HSA_STATUS_ERROR\b",
        "a kernel broke off; both code and devices cause this",
        _DOCTOR,
    ),
    _sign(
        "no device",
        "AMD",
        ("device", "possible"),
        r"No HIP GPUs are available|hipErrorNoDevice|Unable to open /dev/kfd|HSA_STATUS_ERROR_OUT_OF_RESOURCES",
        "the rank sees no usable device",
        _SEES_NONE,
    ),
)
INTEL = (
    _sign(
        "illegal memory access",
        "Intel",
        ("script", "likely"),
        r"Segmentation fault from GPU|Unexpected page fault from GPU",
        "a kernel used memory that it must not; code does this far more often than a device",
        _BOUNDS.format("ZE_SERIALIZE"),
    ),
    _sign(
        "device lost",
        "Intel",
        ("device", "possible"),
        r"\b(?:UR|ZE|PI)_(?:RESULT_)?ERROR_DEVICE_LOST|\bDEVICE_LOST\b",
        "the driver gave up the device's context; a fault in a kernel and a fault of the device both cause this",
        _DOCTOR,
    ),
    _sign(
        "no device",
        "Intel",
        ("device", "possible"),
        r"no XPU device|ZE_RESULT_ERROR_UNINITIALIZED",
        "the rank sees no usable device",
        _SEES_NONE,
    ),
)
ANY = (
    _sign(
        "shared file system",
        "any",
        ("file system", "likely"),
        r"Input/output error|Stale file handle|Transport endpoint|Remote I/O error",
        "a file system did not answer properly; one bad storage target shows on every node",
        "look at the status page of the site; a run on another file system goes on",
    ),
    _sign(
        "library missing",
        "any",
        ("file system", "possible"),
        r"(?<!libnccl-net\.so)(?<!librccl-net\.so): cannot open shared object file",
        "a shared library was not found; on a shared file system also while it does not answer",
        "load the module that has it, or build the environment on this machine; mixed modules are the usual cause",
    ),
    _sign(
        "network down",
        "any",
        ("network", "possible"),
        r"No route to host|Network is (?:unreachable|down)",
        "a node could not be reached over the network that the rank used",
        "check the interface (NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME), then `windlass doctor --full`",
    ),
    _sign(
        "bus error",
        "any",
        ("unknown", "possible"),
        r"\bBus error\b",
        "memory that a file or /dev/shm backs was gone: full, truncated or unreadable",
        "look at the space of /dev/shm and at the files that the rank maps",
    ),
)
SIGNS = (*NVIDIA, *AMD, *INTEL, *ANY)

KERNEL = (
    _sign(
        "Xid of the hardware",
        "NVIDIA",
        ("device", "certain"),
        r"\bXid\b[^)]{0,60}\): (?:48|62|64|74|79|92|94|95|119|120|140|143)\b|fallen off the bus",
        "the driver reports a fault of the device or its link",
        _SUPPORT,
        proves=True,
    ),
    _sign(
        "Xid of a program",
        "NVIDIA",
        ("script", "likely"),
        r"\bXid\b",
        "the driver reports a fault that a program can cause",
        _BOUNDS.format("CUDA_LAUNCH_BLOCKING"),
    ),
    _sign(
        "uncorrectable error",
        "AMD",
        ("device", "certain"),
        r"amdgpu.{0,100}(?:uncorrectable (?:hardware )?error|poison|device lost from bus)",
        "the driver reports a fault of the device",
        _SUPPORT,
        proves=True,
    ),
    _sign(
        "wedged device",
        "Intel",
        ("device", "certain"),
        r"\b(?:xe|i915)\b.{0,100}(?:wedged|uncorrectable|hardware error)",
        "the driver has given up the device",
        _SUPPORT,
        proves=True,
    ),
    _sign(
        "machine check",
        "any",
        ("node", "certain"),
        r"(?:hardware error|machine check|\bmce\b|EDAC).{0,100}(?:uncorrected|fatal|\bUE\b)|"
        r"(?:uncorrected|fatal).{0,100}(?:hardware error|machine check)",
        "the kernel reports a fault of processor or memory",
        _SUPPORT,
        proves=True,
    ),
    _sign(
        "shared file system",
        "any",
        ("file system", "likely"),
        r"Lustre|\bnfs: server|\bmmfs|beegfs|\bGPFS\b",
        "the client of the shared file system complains",
        "look at the status page of the site",
    ),
    _sign(
        "local disk",
        "any",
        ("node", "certain"),
        r"(?:\bnvme\w{0,20}|\bsd[a-z]\b|EXT4-fs|\bXFS\b).{0,100}I/O error|I/O error, dev (?:nvme|sd)",
        "a disk of the node has errors",
        _SUPPORT,
        proves=True,
    ),
    _sign(
        "link down",
        "any",
        ("network", "certain"),
        r"(?:mlx\d|cxi|hsn|\bib\d|bnxt|ice).{0,100}link (?:is )?down",
        "a link of the node's network went down",
        _SUPPORT,
        proves=True,
    ),
)


def sign_of(line: str) -> Sign | None:
    """The first sign in an error line of a rank; None where the table has none for it."""
    return next((sign for sign in SIGNS if sign.pattern.search(line)), None)


def first_sign_line(lines: Iterable[str]) -> str:
    """The first of these lines that has a sign; empty where none has."""
    return next((line.strip() for line in lines if sign_of(line)), "")


def kernel_proof(lines: Iterable[str]) -> tuple[Sign, str] | None:
    """The first kernel message that is evidence about the node itself, with its sign."""
    for line in lines:
        sign = next((sign for sign in KERNEL if sign.pattern.search(line)), None)
        if sign is not None and sign.proves:
            return sign, line
    return None
