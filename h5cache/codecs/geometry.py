"""Arithmetic on chunk geometry and checks of codec options."""

from __future__ import annotations

from collections.abc import Container, Iterable

from h5cache.errors import CodecError

from .codec import ChunkGeometry

__all__ = ["check_choice", "check_geometry", "smallest_divisor"]


def smallest_divisor(number: int, limit: int) -> int:
    """Return the smallest divisor of `number` above 1 and at most `limit`, else 1."""
    return next((d for d in range(2, min(number, limit) + 1) if number % d == 0), 1)


def check_geometry(geometry: ChunkGeometry, block_nbytes: int, max_block_nbytes: int, max_chunk_nbytes: int) -> None:
    """CodecError unless the chunk is made of whole blocks of whole samples, of sizes the codec can serve.

    `block_nbytes` is the size the codec was given or resolved to before, 0 for none.
    """
    if geometry.block_nbytes <= 0 or geometry.chunk_samples % geometry.block_samples or geometry.chunk_samples <= 0:
        raise CodecError(f"a chunk must hold whole blocks of whole samples, got {geometry}")
    if geometry.itemsize <= 0 or geometry.sample_nbytes % geometry.itemsize:
        raise CodecError(
            f"a sample of {geometry.sample_nbytes} bytes is not made of items of {geometry.itemsize} bytes"
        )
    if block_nbytes not in (0, geometry.block_nbytes):
        raise CodecError(f"block_nbytes is {block_nbytes}, but the field's blocks have {geometry.block_nbytes} bytes")
    if geometry.block_nbytes > max_block_nbytes or geometry.chunk_nbytes > max_chunk_nbytes:
        raise CodecError(
            f"blocks of {geometry.block_nbytes} and chunks of {geometry.chunk_nbytes} bytes exceed this codec's "
            f"limits of {max_block_nbytes} and {max_chunk_nbytes}: use fewer samples per chunk, or codec 'none'"
        )


def check_choice(option: str, value: object, choices: Container[object]) -> None:
    """CodecError unless `value` is one of `choices`."""
    if isinstance(value, bool) or value not in choices:
        if isinstance(choices, range):
            known = f"{choices.start} to {choices.stop - 1}"
        else:
            known = ", ".join(map(str, choices)) if isinstance(choices, Iterable) else str(choices)
        raise CodecError(f"codec option {option} is {value!r}, expected one of: {known}")
