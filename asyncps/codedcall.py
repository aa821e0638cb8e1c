"""The encoding of what of a call's values is compressed, in the caller's thread.

First all of them are looked at, and then they are encoded. So several calls can be looked at before
the first of them is encoded and begins.
"""

from __future__ import annotations

from asyncps.call import Call
from asyncps.errors import ClusterError
from asyncps.roles.client import Client
from asyncps.tablecall import TableCall


def coded(client: Client, call: Call) -> Call:
    """Encode what of a call's values is compressed: nothing here can refuse it any more."""
    return encode(checked(client, call))


def checked(client: Client, call: Call) -> Call:
    """Refuse a call with values that cannot be encoded; nothing is encoded yet.

    While the store is saved or loaded nothing is encoded, and the call fails when it begins.
    """
    compression, outgoing = client.compression, call.outgoing
    if compression is None or outgoing is None:
        return call
    if compression.has_fresh:
        compression.look(client.keys)
    unsent = compression.unsent(call.plan, outgoing.large, outgoing.slabs)
    if not (call.plan.coded or unsent or compression.ends_some(call.plan)):
        return call
    encoding = client.encodings.begin()
    still = client.still  # in this order: see `Encodings`
    if still:
        encoding.end()
        call.refused = ClusterError(f"{call.op.verb} while {still} is under way")
        return call
    try:
        compression.rates.use(client.optimizer, client.hyper)
        call.checked = compression.checked(
            call.plan, outgoing.large, outgoing.slabs, client.pool,
            tables=call.contributions if isinstance(call, TableCall) else (), unsent=unsent,
        )
    except BaseException:
        encoding.end()
        raise
    call.encoding = encoding
    return call


def encode(call: Call) -> Call:
    """Encode what was found to be right; it counts as under way until the call begins or ends."""
    found, outgoing, encoding = call.checked, call.outgoing, call.encoding
    if call.plan.dense:  # for the report
        unsent = {each.key for each in found.unsent} if found is not None else ()
        pushed = call.contributions if isinstance(call, TableCall) else ()
        rows = {each.info.key: len(each.values) for each in pushed if not each.encoded}
        for info in call.plan.dense:
            if info.key in unsent:
                continue
            info.dense_bytes += rows.get(info.key, 0) if info.is_table else info.nbytes
    if found is None or outgoing is None or encoding is None:
        return call
    call.checked = None
    try:
        coding = found.encode(outgoing.take, lent=call.op.lent)
        outgoing.copied_bytes += coding.sent_bytes
        call.op.on_success(outgoing.release)
        coding.watch(call.op)
    except BaseException:
        encoding.end()
        raise
    call.op.on_end(lambda _: encoding.end())  # behind what puts its values back
    return call


def forget(call: Call) -> None:
    """Take note that a call which was only looked at will not begin."""
    call.checked = None
    if call.encoding is not None:
        call.encoding.end()
