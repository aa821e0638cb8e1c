"""Compression of sums between ranks: the verbs of a communicator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from asyncps.codedsums import CodedSums
from asyncps.collectivecall import OWN, CollectiveHandle
from asyncps.roles.made import Op
from asyncps.tensor.threads import threads_of
from asyncps.values import Key

if TYPE_CHECKING:
    from asyncps.fusing import Fusing
    from asyncps.roles.worker import Worker


class CodedVerbs:
    """Of a communicator: what is compressed is told by the names of calls."""

    _coded: CodedSums | None = None

    if TYPE_CHECKING:  # the communicator's
        _fusing: Fusing
        _worker: Worker
        _ranks: Sequence[int]

        def all_gather(self, x: Any, name: str | None = None, async_op: bool = False) -> Any: ...

    def set_gradient_compression(
        self, compression_params: Mapping[str, Any] | None, names: Any = None
    ) -> None:
        """Send the sums of some names in fewer bytes; every rank calls this with the same words.

        Args:
            compression_params: As `KVStore.set_gradient_compression` takes them, but for `pull`.
            names: A pattern of names of calls (as in a shell: `layer*.weight`), a list of names (no
                patterns), or None for all. Of several calls that name one the last one counts.

        It is of `all_reduce` with a name and op "sum" or "mean", of floats of at most 32 bits. What
        a rank has not sent of a name goes with the next call of that name; so a name is that of one
        array, again and again. All ranks have the same bits all the same.

        Raises:
            ConfigError: An unknown type or option; the known ones are listed. An empty list.
            Disagreement: Another rank said something else.
        """
        coded = self._coded or coded_sums(
            self._worker, self._fusing, self._ranks, "", self._fusing.number)
        coded.set(compression_params, names, self.all_gather)
        self._coded = coded

    def compression_report(self) -> dict[int | str, dict[str, Any]]:
        """Return plain data by name, as `KVStore.compression_report`; `paid` is None here.

        `bytes_sent` is what the values became: what that takes on the wire depends on how many
        ranks there are.
        """
        return {} if self._coded is None else self._coded.report()

    def _coded_sum(
        self, coded: CodedSums, key: Key, place: CollectiveHandle, op: int, factor: float
    ) -> CollectiveHandle | None:
        """Begin a sum in few bytes; None if it is to go as it is."""
        if op not in (Op.SUM, Op.MEAN) or place.name.startswith(OWN):
            return None
        return coded.begin(key, place.name, place, mean=op == Op.MEAN, factor=factor)


def coded_sums(
    worker: Worker, fusing: Fusing, ranks: Sequence[int], store: str, number: int
) -> CodedSums:
    """Return the compressed sums of a communicator, or of a store."""
    seed = f"{worker.config.job}/{store}", number
    return CodedSums(fusing, ranks, seed, threads_of(worker.config.kernel_threads))
