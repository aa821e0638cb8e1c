"""Compression of a store without servers: its verbs, and what a trainer tells it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from asyncps.codedsums import CodedSums, Gather
from asyncps.codedverbs import coded_sums
from asyncps.compressionverbs import warn_of_unsent
from asyncps.tensor.dtypes import Array
from asyncps.values import Key

if TYPE_CHECKING:
    from asyncps.allreducecalls import Calling


class CodedStoreVerbs:
    """Of a store without servers: what is compressed is told by keys."""

    _coded: CodedSums | None = None

    if TYPE_CHECKING:  # the store's
        _calling: Calling
        _keys: dict[Key, Array]
        _name: str

        def _check_open(self) -> None: ...

    def set_gradient_compression(
        self, compression_params: Mapping[str, Any] | None, keys: Any = None
    ) -> None:
        """Send the sums of some keys in fewer bytes; every worker calls this with the same words.

        Args:
            compression_params, keys: As `KVStore.set_gradient_compression` takes them, but for
                `pull`.

        Raises:
            ConfigError: An unknown type or option; the known ones are listed. Or dgc, which has the
                momentum, beside a trainer with one. An empty list of keys.
            Disagreement: Another worker said something else.
        """
        self._compress(compression_params, keys)

    def _compress_others(self, compression_params: Mapping[str, Any]) -> None:
        """As a trainer's words for all keys: those that are named by rules of their own aside."""
        self._compress(compression_params, None, default=True)

    def _compress(
        self, compression_params: Mapping[str, Any] | None, keys: Any, *, default: bool = False
    ) -> None:
        self._check_open()
        coded = self._coded or self._make_coded()
        coded.set(compression_params, keys, self._gather(), default=default)
        for key, spec in list(self._keys.items()):
            coded.know(key, spec)

    def _gather(self) -> Gather:
        def gather(x: Array) -> Array:
            calling = self._calling
            with calling.lock:
                self._check_open()
                handle = calling.comm.all_gather(
                    x, name=calling.name(f"compression of store {self._name!r}"), async_op=True)
            found: Array = handle.wait()
            return found

        return gather

    def _make_coded(self) -> CodedSums:
        comm = self._calling.comm
        self._coded = coded_sums(self._calling.worker, comm._fusing, comm._ranks, self._name, 0)
        return self._coded

    def compression_report(self) -> dict[int | str, dict[str, Any]]:
        """Return plain data by key, as `KVStore.compression_report`; `paid` is None here.

        `bytes_sent` is what the values became: what that takes on the wire depends on how many
        workers there are.
        """
        return self._coded.report() if self._coded is not None and self._coded.is_set else {}

    # ---- what a trainer says ----

    def _use_own(self, hyper: Mapping[str, Any], sums: Sequence[Key]) -> None:
        """A trainer steps, with these hyper-parameters.

        Raises:
            ConfigError: They do not go together with a compression.
        """
        if self._coded is not None:
            self._coded.use_own(hyper)

    def _let_stand(self, names: Mapping[Key, Key]) -> None:
        """A trainer's own keys stand for its user's: compression speaks of these."""
        (self._coded or self._make_coded()).let_stand(names)

    def _note_unsaved(self, verb: str) -> None:
        """Warn that a verb does not write what compression keeps at this worker."""
        if self._coded is not None:
            warn_of_unsent(verb, self._coded.unsent())
