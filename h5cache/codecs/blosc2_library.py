"""The one function of C-Blosc2 that reading needs, called without the GIL into memory of the caller's choosing.

The `blosc2` wheel ships the C library with its documented API. It is called through ctypes: that takes a destination
pointer and about 2 us a call, while `import blosc2` takes 0.2 s and starts threads. Where the library is missing or
fails its self check, `blosc2.decompress2` serves: slower per call, otherwise the same.
"""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from h5cache.errors import CodecError

__all__ = ["Decompressor", "FallbackDecompressor", "LibraryDecompressor", "decompressor"]

_log = logging.getLogger(__name__)

# Two ramps of 256 bytes, a block each, through BYTEDELTA and zstd: the way of almost every stored picture.
_KNOWN_CHUNK = bytes.fromhex(
    "0501950200020000000100005600000023000000000005000100000000000000280000003f0000001300000028b52ffd"
    "6000004d000010000101007b0a60011300000028b52ffd6000004d000010000101007b0a6001"
)
_KNOWN_DATA = bytes(range(256)) * 2


class Decompressor(Protocol):
    """Decode one Blosc chunk. Safe from many threads at once."""

    def __call__(self, chunk: npt.NDArray[np.uint8], out: npt.NDArray[Any]) -> None:
        """Decode `chunk` into all of `out`, both C-contiguous; CodecError if that fails or yields another size.

        The chunk's header must have been checked against both sizes: C trusts it.
        """

    def bind(self, memory: npt.NDArray[np.uint8], rows: npt.NDArray[np.uint8]) -> Callable[[int, int], None]:
        """Return `decompress(chunk_nbytes, row)`, for the thread that calls this.

        It decodes the chunk at `memory[:chunk_nbytes]` into `rows[row]`. Both numbers are the caller's to check, and
        `memory` and `rows` are C-contiguous and writable.
        """


class _DecompressParams(ctypes.Structure):
    """`blosc2_dparams`, passed by value. Zeros mean "default" in every later member.

    The reserve makes it larger than today's 40 bytes. An argument of that size goes through memory, so that a library
    whose struct has grown reads zeros there rather than whatever the stack holds.
    """

    _fields_ = [("nthreads", ctypes.c_int16), ("rest", ctypes.c_byte * 190)]


class _Context:
    """A decompression context of one thread, freed with it."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._pid = os.getpid()
        self.pointer: int | None = library.blosc2_create_dctx(_DecompressParams(nthreads=1))
        if not self.pointer:
            raise CodecError("C-Blosc2 could not create a decompression context: out of memory?")

    def __del__(self) -> None:
        # In a forked child the context of another thread may have been caught in the middle of a call: leave it.
        if getattr(self, "pointer", None) and self._pid == os.getpid():
            self._library.blosc2_free_ctx(self.pointer)


class LibraryDecompressor:
    """C-Blosc2 through ctypes, which drops the GIL for the call. One context per thread."""

    def __init__(self, path: Path) -> None:
        try:
            library = ctypes.CDLL(str(path))
            library.blosc2_init.argtypes, library.blosc2_init.restype = (), None
            library.blosc2_create_dctx.argtypes = (_DecompressParams,)
            library.blosc2_create_dctx.restype = ctypes.c_void_p
            library.blosc2_free_ctx.argtypes, library.blosc2_free_ctx.restype = (ctypes.c_void_p,), None
            self._decompress = library.blosc2_decompress_ctx
        except (OSError, AttributeError) as exc:
            raise CodecError(f"cannot use the C-Blosc2 library {path}: {exc}") from exc
        self._decompress.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32)
        self._decompress.restype = ctypes.c_int
        library.blosc2_init()
        self._library = library
        self._contexts = threading.local()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget_contexts)
        check_decompressor(self)

    def _forget_contexts(self) -> None:
        self._contexts = threading.local()

    def __call__(self, chunk: npt.NDArray[np.uint8], out: npt.NDArray[Any]) -> None:
        out_nbytes = out.nbytes
        got = self._decompress(self._context().pointer, _address(chunk), chunk.nbytes, _address(out), out_nbytes)
        if got != out_nbytes:
            raise _decode_error(got, out_nbytes)

    def bind(self, memory: npt.NDArray[np.uint8], rows: npt.NDArray[np.uint8]) -> Callable[[int, int], None]:
        context, call = self._context(), self._decompress
        pointer, source, target, row_nbytes = context.pointer, _address(memory), _address(rows), rows.shape[1]

        # The addresses are good as long as what they point into is alive.
        def decompress(chunk_nbytes: int, row: int, _alive: tuple[Any, ...] = (context, memory, rows)) -> None:
            got = call(pointer, source, chunk_nbytes, target + row * row_nbytes, row_nbytes)
            if got != row_nbytes:
                raise _decode_error(got, row_nbytes)

        return decompress

    def _context(self) -> _Context:
        try:
            found: _Context = self._contexts.context
        except AttributeError:
            found = self._contexts.context = _Context(self._library)
        return found


class FallbackDecompressor:
    """`blosc2.decompress2`, a new context per call.

    It holds the GIL unless `blosc2.set_releasegil(True)` was called, which is a switch for the whole process: it is
    set here, since reader threads would otherwise wait for one another.
    """

    def __init__(self) -> None:
        import blosc2

        blosc2.set_releasegil(True)
        self._decompress2 = blosc2.decompress2
        check_decompressor(self)

    def __call__(self, chunk: npt.NDArray[np.uint8], out: npt.NDArray[Any]) -> None:
        try:
            # It writes as many bytes as the header says, whatever the size of `out`: hence the check by the caller.
            self._decompress2(chunk, out.reshape(-1).view(np.uint8), nthreads=1)
        except (ValueError, RuntimeError) as exc:
            raise _decode_error(-1, out.nbytes) from exc

    def bind(self, memory: npt.NDArray[np.uint8], rows: npt.NDArray[np.uint8]) -> Callable[[int, int], None]:
        return lambda chunk_nbytes, row: self(memory[:chunk_nbytes], rows[row])


def _decode_error(got: int, expected: int) -> CodecError:
    what = f"error {got}" if got < 0 else f"{got} bytes"
    return CodecError(f"damaged Blosc data: decoding gave {what}, expected {expected} bytes")


def _address(array: npt.NDArray[Any]) -> int:
    # 0.2 us against 0.7 us for `array.ctypes.data`, but only for writable memory.
    if array.flags.writeable:
        return ctypes.addressof(ctypes.c_char.from_buffer(array.data))
    return int(array.__array_interface__["data"][0])


def check_decompressor(decompress: Decompressor) -> None:
    """Decode a known chunk; CodecError unless it comes back exactly, with nothing written behind it."""
    out = np.full(len(_KNOWN_DATA) + 64, 0xA5, np.uint8)
    decompress(np.frombuffer(_KNOWN_CHUNK, np.uint8), out[: len(_KNOWN_DATA)])
    if out.tobytes() != _KNOWN_DATA + b"\xa5" * 64:
        raise CodecError("the installed C-Blosc2 decodes a known chunk wrongly: reinstall the blosc2 package")


def _library_paths() -> Iterator[Path]:
    """Yield the C libraries inside the blosc2 package, without importing it."""
    spec = importlib.util.find_spec("blosc2")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        for folder in ("lib", "lib64", "."):
            for name in ("libblosc2.so", "libblosc2.dylib", "libblosc2.dll", "blosc2.dll"):
                path = Path(root, folder, name)
                if path.is_file():
                    yield path


def _load_library() -> LibraryDecompressor:
    problems = []
    for path in _library_paths():
        try:
            return LibraryDecompressor(path)
        except CodecError as exc:
            problems.append(str(exc))
    raise CodecError("; ".join(problems) or "no C-Blosc2 library in the blosc2 package")


_loaded: dict[str, Decompressor] = {}
_loading = threading.Lock()


def _renew_lock() -> None:
    global _loading
    _loading = threading.Lock()


if hasattr(os, "register_at_fork"):
    # Another thread may hold the lock at the moment of a fork; nobody would release it in the child.
    os.register_at_fork(after_in_child=_renew_lock)


def decompressor(prefer: Literal["library", "fallback"] = "library") -> Decompressor:
    """Return this process's decompressor, loading and checking it on first use. Thread-safe."""
    found = _loaded.get(prefer)
    if found is not None:
        return found
    with _loading:
        if prefer not in _loaded:
            _loaded[prefer] = _load(prefer)
        return _loaded[prefer]


def _load(prefer: str) -> Decompressor:
    if prefer == "library":
        try:
            return _load_library()
        except CodecError as exc:
            _log.warning("reading through blosc2.decompress2, which is slower: %s", exc)
    try:
        return FallbackDecompressor()
    except ImportError as exc:
        raise CodecError("the blosc2 package is not installed: pip install blosc2") from exc
