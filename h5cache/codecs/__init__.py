"""Codecs: chunks of samples to stored bytes and back. No files, no HDF5, no torch.

`codec.py` is the contract. A codec is one file and one row in `CODECS`; the contract tests run on every row.
Importing this package loads numpy only; the compressors are loaded on first use.
"""

from __future__ import annotations

from typing import Any

from h5cache.errors import CodecError

from .auto import CandidateRow, CodecChoice, choose_codec, format_choice
from .blosc import Blosc
from .blosc2 import Blosc2, is_own_frame
from .codec import BlockDecoder, BlockSpans, Buffer, ChunkGeometry, Codec
from .encode import encode_verified
from .raw import Raw
from .zstd import Zstd

__all__ = [
    "CODECS",
    "BlockDecoder",
    "BlockSpans",
    "Blosc",
    "Blosc2",
    "Buffer",
    "CandidateRow",
    "ChunkGeometry",
    "Codec",
    "CodecChoice",
    "Raw",
    "Zstd",
    "choose_codec",
    "codec_from_config",
    "codec_from_name",
    "encode_verified",
    "format_choice",
    "is_own_frame",
]

CODECS: dict[str, type[Codec]] = {codec.name: codec for codec in (Raw, Blosc2, Blosc, Zstd)}


def codec_from_name(name: str) -> Codec:
    """Return the codec of that name with its default options; CodecError if there is none."""
    return codec_from_config({"name": name})


def codec_from_config(config: dict[str, Any]) -> Codec:
    """Return the codec that `Codec.to_config` described; CodecError for unknown names and options."""
    options = dict(config)
    name = options.pop("name", None)
    if name not in CODECS:
        raise CodecError(f"unknown codec {name!r}: known are {', '.join(CODECS)}")
    try:
        return CODECS[name](**options)
    except TypeError as exc:
        raise CodecError(f"codec {name!r} does not take these options: {exc}") from exc
