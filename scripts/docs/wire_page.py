"""The numbers and limits of the cache's wire protocol, as a table made from the module that speaks it. Pure."""

from __future__ import annotations

from markdown_table import table
from windlass.node.cache import keys
from windlass.node.wire import proof, wire
from windlass.node.wire import proof as channel

REQUESTS = ("GET", "GET_INLINE", "PREFETCH", "STREAM", "READY", "STATUS", "TOUCH", "PING")
REPLIES = ("OBJECT", "HAVE", "ERROR", "WAIT", "PLAN", "SKIP", "END", "ANSWER", "GONE", "BATCH")


def wire_part() -> str:
    """Kinds of frames with the largest body that is taken of each, and the sizes that both sides agree on."""
    rows = [(f"`{name}`", str(getattr(wire, name)), "request", _limit(getattr(wire, name))) for name in REQUESTS]
    rows += [(f"`{name}`", str(getattr(wire, name)), "reply", _limit(getattr(wire, name))) for name in REPLIES]
    sizes = (
        ("version of the protocol", str(proof.VERSION)),
        ("hello of the called side", f"{proof.HELLO_BYTES} bytes"),
        ("claim of the caller", f"{proof.CLAIM_BYTES} bytes"),
        ("proof of the called side", f"{proof.PROOF_BYTES} bytes"),
        (f"head of a frame (`{wire.HEAD.format}`)", f"{wire.HEAD_BYTES} bytes"),
        ("tag of a frame on TCP", f"{channel.TAG_BYTES} bytes"),
        ("key of an object", f"at most {keys.MAX_KEY_BYTES:,} bytes"),
        ("digest of an object (SHA-256)", f"{keys.DIGEST_BYTES} bytes"),
        ("objects of a batch", f"at most {wire.BATCH_OBJECTS}"),
    )
    head = ("kind", "number", "", "largest body, bytes")
    return "\n".join(("## Numbers and limits", "", *table(head, rows), "", *table(("what", "size"), sizes), ""))


def _limit(kind: int) -> str:
    """Found by asking the parser, so that it is what a receiver really takes."""
    parse = wire.parse_request_head if kind <= wire.PING else wire.parse_reply_head
    low, high = 0, (1 << 32) - 1
    while low < high:
        middle = (low + high + 1) // 2
        try:
            parse(wire.head(kind, 0, middle))
            low = middle
        except proof.ProtocolError:
            high = middle - 1
    return f"{low:,}"
