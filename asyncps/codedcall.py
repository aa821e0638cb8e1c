"""The encoding of what of a call's values is compressed, in the caller's thread."""

from __future__ import annotations

from asyncps.call import Call
from asyncps.errors import ClusterError
from asyncps.roles.client import Client
from asyncps.roles.compressing import Compression
from asyncps.tablecall import TableCall
from asyncps.values import Outgoing


def coded(client: Client, call: Call) -> Call:
    """Encode what of a call's values is compressed: nothing here can refuse it any more.

    While the store is saved or loaded nothing is encoded, and the call fails when it begins.
    """
    compression, outgoing = client.compression, call.outgoing
    if compression is None or outgoing is None or not call.plan.coded:
        return call
    encoding = client.encodings.begin()
    still = client.still  # in this order: see `Encodings`
    if still:
        encoding.end()
        call.refused = ClusterError(f"{call.op.verb} while {still} is under way")
        return call
    try:
        _encode(client, call, compression, outgoing)
    except BaseException:
        encoding.end()
        raise
    call.encoding = encoding
    call.op.on_end(lambda _: encoding.end())  # behind what puts its values back
    return call


def _encode(client: Client, call: Call, compression: Compression, outgoing: Outgoing) -> None:
    compression.rates.use(client.optimizer, client.hyper)
    coding = compression.encode(
        call.plan, outgoing.large, outgoing.slabs, outgoing.take, client.pool,
        lent=call.op.lent, tables=call.contributions if isinstance(call, TableCall) else (),
    )
    outgoing.copied_bytes += coding.sent_bytes
    call.op.on_success(outgoing.release)
    coding.watch(call.op)
