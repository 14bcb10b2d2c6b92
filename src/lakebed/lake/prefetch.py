"""Decodes row groups ahead of a scan: several at once, given in order, few enough to fit memory."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Final, NamedTuple

import pyarrow as pa

from lakebed import limits
from lakebed.errors import ClosedError

WINDOW_BYTES: Final = 16 * limits.MIB
"""No further row group is begun while so many decoded bytes wait for the scan's caller."""

_THREADS: Final = min(4, os.cpu_count() or 1)
_WAITING_MAX: Final = _THREADS + 1
"""Row groups of one scan that are decoded or wait, however small they seem before."""

_Waiting = deque[tuple[Future[pa.RecordBatch], int]]


class PendingDecode(NamedTuple):
    """A part of a scan that is still to be decoded."""

    size_bytes: int
    """About how large it will be."""
    decode: Callable[[], pa.RecordBatch]


class Decoders:
    """The threads that decode for all scans of a log, made when there is a first. Any thread."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._closed = False

    def in_order(self, pieces: Iterator[PendingDecode]) -> Iterator[pa.RecordBatch]:
        """Return every piece's batch, empty ones left out, while those that follow are decoded.

        A caller that stops early leaves nothing running: what was not begun is cancelled.
        """
        waiting: _Waiting = deque()
        try:
            self._fill(waiting, pieces)
            while waiting:
                batch = _result(waiting.popleft()[0])
                self._fill(waiting, pieces)
                if batch.num_rows:
                    yield batch
                del batch  # its caller is done with it
        finally:
            for future, _ in waiting:
                future.cancel()

    def close(self) -> None:
        """Finish what is being decoded; every scan ends with `ClosedError`."""
        with self._guard:
            self._closed = True
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(cancel_futures=True)

    def _fill(self, waiting: _Waiting, pieces: Iterator[PendingDecode]) -> None:
        held = sum(_size(future, about) for future, about in waiting)
        while held < WINDOW_BYTES and len(waiting) < _WAITING_MAX:
            piece = next(pieces, None)
            if piece is None:
                return
            waiting.append((self._submit(piece.decode), piece.size_bytes))
            held += piece.size_bytes

    def _submit(self, decode: Callable[[], pa.RecordBatch]) -> Future[pa.RecordBatch]:
        with self._guard:
            if self._closed:
                raise ClosedError("the log was closed during a scan")
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="lakebed-scan")
            try:
                return self._pool.submit(decode)
            except RuntimeError:
                pass  # the interpreter is ending, and no thread can be given work any more
        return _decode_now(decode)


def _decode_now(decode: Callable[[], pa.RecordBatch]) -> Future[pa.RecordBatch]:
    """Decode in the calling thread."""
    future: Future[pa.RecordBatch] = Future()
    try:
        future.set_result(decode())
    except Exception as error:
        future.set_exception(error)
    return future


def _size(future: Future[pa.RecordBatch], about: int) -> int:
    """Return what a row group takes: exactly once it is decoded, about before."""
    if not future.done() or future.cancelled() or future.exception() is not None:
        return about
    return int(future.result().nbytes)


def _result(future: Future[pa.RecordBatch]) -> pa.RecordBatch:
    try:
        return future.result()
    except CancelledError as error:
        raise ClosedError("the log was closed during a scan") from error
