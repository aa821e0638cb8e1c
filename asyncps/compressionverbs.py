"""Compression, for both faces of a store of a cluster; a local store sends nothing."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from asyncps.core import Core
from asyncps.errors import ConfigError
from asyncps.roles.runtime import Runtime
from asyncps.values import Key

log = logging.getLogger(__name__)


def warn_of_unsent(verb: str, keys: Sequence[Key]) -> None:
    """Warn that a verb does not write what compression keeps at this worker.

    Args:
        verb: That.
        keys: Of which something is kept.
    """
    if keys:
        log.warning(
            "%s does not write what compression has not sent yet, nor a momentum of dgc's: of %d "
            "keys, such as %r, a trainer that loads this begins with none", verb, len(keys),
            keys[0])


class CompressionReports:
    """What both faces say of it."""

    _core: Core

    def compression_report(self) -> dict[int | str, dict[str, Any]]:
        """Return plain data by key: how its pushes travel, and what that came to.

        Of each key that this worker knows, once a compression is set: `codec`, its name or "dense";
        `why`, of a dense one; `bytes_before` and `bytes_sent`, of the values that were pushed and
        of what they became; `error_norm`, the l2 norm of what was not sent yet. Of one with a codec
        `encode_s` too, seconds spent encoding; `skipped`, pushes that were not finite;
        `link_bytes_s`, bytes a second of the links to the servers while these were busy, None while
        unknown; `paid`, whether the bytes saved would have taken longer there than encoding did,
        None while unknown.
        """
        return self._core.compression_report()

    @property
    def _is_compressed(self) -> bool:
        """Whether a gradient may be refused because it cannot be encoded."""
        return self._core.client.compression is not None

    def _let_stand(self, names: Mapping[Key, Key]) -> None:
        """A trainer's own keys stand for its user's: compression speaks of these."""
        self._core.client.let_stand(names)

    def _note_unsaved(self, verb: str) -> None:
        """Warn that a verb does not write what compression keeps at this worker."""
        client = self._core.client
        if client.compression is not None:
            warn_of_unsent(verb, [client.stands_for.get(key, key)
                                  for key in client.compression.coders.unsent()])

    def _use_own(self, hyper: Mapping[str, Any], sums: Sequence[Key]) -> None:
        """A trainer steps, with these hyper-parameters.

        Args:
            hyper: They.
            sums: Keys of gradients whose sums it pulls, as it updates at the workers.

        Raises:
            ConfigError: A compression is to follow the learning rate, and it is a schedule; or has
                a momentum, as the trainer has; or pulls changes of what is a sum.
        """
        client = self._core.client
        if sums and client.compression is not None:
            client.compression.check_sums([client.keys[key] for key in sums])
        client.check_rate(hyper)
        client.check_momentum(hyper)
        if client.compression is not None:
            client.compression.rates.use_own(hyper.get("learning_rate"))


class CompressionVerbs(CompressionReports):
    """The verb of `KVStore`."""

    _runtime: Runtime

    def set_gradient_compression(
        self, compression_params: Mapping[str, Any] | None, keys: Any = None
    ) -> None:
        """Send pushes of some keys in fewer bytes; every worker calls this with the same words.

        Args:
            compression_params: `type` is f16, bf16, int8, 1bit, 2bit, onebit, topk, threshold,
                randomk, dgc or powersgd; beside it options: see docs/compression.md. "none", or
                None: these keys travel as they are, and what they have kept goes with the next push
                of each. With `pull` "f16" or "bf16" the answers of pull and pushpull of float32
                keys take half their bytes, and `out` holds the nearest such value, as float32. With
                `pull` True (all types but powersgd; in dist_sync) they bring changes only, and
                `out` holds what all workers hold.
            keys: A pattern of str keys (as in a shell: `layer*.weight`), a key that is an int, a
                list of keys (no patterns), or None for all. Of several calls that name a key the
                last one counts. A trainer's `compression_params` count for keys that none names.
                Rank 0's log warns at the next push of a pattern, or a key, that is of no key there.

        Earlier pushes are accepted first. What a key has not sent yet stays when its codec changes.
        Of row-sparse keys the values of the pushed rows are encoded, and what is not sent is kept
        by row.

        Raises:
            ConfigError: An unknown type or option; the known ones are listed. Or dgc, which has the
                momentum, beside an optimizer with one. An empty list of keys.
            Disagreement: Another worker said something else.
            NotYetError: A documented type or option that is not there yet.
        """
        self._runtime.run(lambda: self._core.set_compression(compression_params, keys))

    def _compress_others(self, compression_params: Mapping[str, Any]) -> None:
        """As a trainer's words for all keys: those that are named by rules of their own aside.

        Raises:
            ConfigError: There are other words for all keys.
        """
        self._runtime.run(
            lambda: self._core.set_compression(compression_params, None, default=True))


class AsyncCompressionVerbs(CompressionReports):
    """The verb of `AsyncKVStore`."""

    async def set_gradient_compression(
        self, compression_params: Mapping[str, Any] | None, keys: Any = None
    ) -> None:
        """As `KVStore.set_gradient_compression`."""
        await self._core.set_compression(compression_params, keys)


class LocalCompressionVerbs:
    """What a store of one process says instead."""

    type: str

    def set_gradient_compression(
        self, compression_params: Mapping[str, Any] | None, keys: Any = None
    ) -> NoReturn:
        """Refuse it: nothing is sent here, so nothing can be sent in fewer bytes.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError("compression is of what is sent, and a local store sends nothing",
                          expected="a store of a cluster, such as dist_sync", got=self.type)

    _compress_others = set_gradient_compression

    def compression_report(self) -> dict[int | str, dict[str, Any]]:
        """Return nothing: no compression is set."""
        return {}
