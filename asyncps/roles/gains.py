"""What compression came to at one worker: key by key, and whether it paid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from asyncps.protocol.messages import Key
from asyncps.roles.compressing import Compression

if TYPE_CHECKING:
    from asyncps.roles.plan import KeyInfo


def gains(
    compression: Compression, infos: Sequence[KeyInfo], link_bytes_s: float | None = None, *,
    looks: bool = True,
) -> dict[Key, dict[str, Any]]:
    """Say of each key how it is sent, and what that came to.

    A trainer that updates at the workers pushes gradients under keys of its own: what is said of
    these is said of the parameter's key, which is not pushed.

    Args:
        compression: The rules and what was encoded by them.
        infos: The keys.
        link_bytes_s: How fast the links to the servers are, None while that is unknown.
        looks: Gradients that travel as they are have been looked at, where a rule names them.
    """
    found: dict[Key, dict[str, Any]] = {}
    every = sorted(infos, key=lambda info: info.told != info.key) if compression.is_set else ()
    for info in every:
        rule, why = compression.rule_of(info)
        coder = compression.coder_of(info.key)
        if rule is not None and rule.ends:
            rule, why = None, "no compression is set for it"
            if compression.keeps_rows(info):
                why = "its compression has ended; what rows keep goes with their next push"
        told: dict[str, Any] = {"codec": "dense" if rule is None else rule.codec.name}
        if rule is None:
            told["why"] = why
        told |= {
            "bytes_before": info.dense_bytes + (coder.before_bytes if coder else 0),
            "bytes_sent": info.dense_bytes + (coder.sent_bytes if coder else 0),
            "error_norm": coder.error_norm() if coder else 0.0,
        }
        if looks and rule is None and compression.looks_at(info) is not None:
            told["skipped"] = coder.skipped if coder else 0
        if rule is not None:
            told |= {
                "encode_s": coder.encode_s if coder else 0.0,
                "skipped": coder.skipped if coder else 0,
                "link_bytes_s": link_bytes_s,
                "paid": coder.paid(link_bytes_s) if coder else None,
            }
        found[info.told] = told
    return found
