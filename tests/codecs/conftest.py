"""What the codec tests share: every codec, every kind of chunk, and both ways to call C-Blosc2."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest

from h5cache.codecs import Blosc, Blosc2, ChunkGeometry, Codec, Raw, Zstd, blosc2_library

CODECS: dict[str, Codec] = {
    "none": Raw(),
    "zstd": Zstd(),
    "blosc2": Blosc2(),
    "blosc2-none": Blosc2(filter="none"),
    "blosc2-shuffle": Blosc2(filter="shuffle"),
    "blosc2-bitshuffle": Blosc2(filter="bitshuffle"),
    "blosc2-shuffle+bytedelta": Blosc2(filter="shuffle+bytedelta"),
    "blosc2-lz4": Blosc2(cname="lz4", filter="shuffle"),
    "blosc2-level-7": Blosc2(clevel=7),
    "blosc": Blosc(),
    "blosc-none": Blosc(shuffle="none"),
    "blosc-bitshuffle": Blosc(shuffle="bitshuffle"),
}


@dataclass(frozen=True)
class Case:
    """A chunk with its geometry."""

    chunk: np.ndarray[Any, Any]
    geometry: ChunkGeometry


def picture(shape: tuple[int, ...], seed: int = 0) -> np.ndarray[Any, Any]:
    """Smooth uint8 data with a little noise along the last axes: compresses about as photographs do."""
    rng = np.random.default_rng(seed)
    steps = rng.integers(-3, 4, shape, dtype=np.int16)
    return (128 + np.cumsum(steps, axis=-1)).astype(np.uint8)


def noise(shape: tuple[int, ...], seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def make_case(chunk: np.ndarray[Any, Any], block_samples: int = 1, channels_last: int = 1) -> Case:
    sample_nbytes = chunk.nbytes // len(chunk)
    return Case(chunk, ChunkGeometry(chunk.itemsize, sample_nbytes, block_samples, len(chunk), channels_last))


def typed(dtype: str) -> np.ndarray[Any, Any]:
    smooth = np.cumsum(np.random.default_rng(3).integers(-2, 3, (4, 3, 20, 20)), axis=-1)
    return smooth > 0 if dtype == "bool" else smooth.astype(dtype)


def mixed(sample_shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    zeros = np.zeros((2, *sample_shape), np.uint8)
    return np.concatenate([zeros, picture((2, *sample_shape)), noise((1, *sample_shape)), zeros[:1] + 9])


DTYPES = ("uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64", "bool")
CASES: dict[str, Callable[[], Case]] = {
    **{dtype: (lambda dtype=dtype: make_case(typed(dtype))) for dtype in DTYPES},
    **{f"chw-{n}": (lambda n=n: make_case(picture((2, 3, n, n)))) for n in (225, 227, 299, 331)},
    **{f"hwc-{n}": (lambda n=n: make_case(picture((2, n, n, 3)), channels_last=3)) for n in (225, 227, 299, 331)},
    "rgba": lambda: make_case(picture((3, 33, 31, 4)), channels_last=4),
    "two-channels": lambda: make_case(picture((3, 33, 31, 2)), channels_last=2),
    "small-samples-sharing-blocks": lambda: make_case(picture((64, 3, 8, 8)), block_samples=16),
    "float-samples-sharing-blocks": lambda: make_case(typed("float32"), block_samples=2),
    "prime-sized-samples": lambda: make_case(picture((4, 1009))),
    "prime-sized-samples-sharing-blocks": lambda: make_case(picture((12, 257)), block_samples=4),
    "samples-of-typesize-beyond-127": lambda: make_case(picture((4, 149 * 3))[:, ::3].copy()),
    "one-byte-samples": lambda: make_case(picture((512,)), block_samples=256),
    "blocks-too-small-to-code": lambda: make_case(picture((40, 5)), block_samples=4),
    "one-sample-of-one-byte": lambda: make_case(np.array([7], np.uint8)),
    "one-sample": lambda: make_case(picture((1, 3, 50, 50))),
    "scalars": lambda: make_case(np.arange(2000, dtype=np.int64), block_samples=500),
    "zeros": lambda: make_case(np.zeros((4, 3, 30, 30), np.uint8)),
    "zero-floats": lambda: make_case(np.zeros((4, 3, 30, 30), np.float32)),
    "ones": lambda: make_case(np.ones((4, 3, 30, 30), np.uint8)),
    "constant-255": lambda: make_case(np.full((4, 3, 30, 30), 255, np.uint8)),
    "constant-float": lambda: make_case(np.full((4, 3, 30, 30), 1.5, np.float32)),
    "nan": lambda: make_case(np.full((4, 3, 30, 30), np.nan, np.float64)),
    "noise": lambda: make_case(noise((4, 3, 30, 30))),
    "noise-prime": lambda: make_case(noise((4, 1009))),
    "noise-sharing-blocks": lambda: make_case(noise((32, 3, 8, 8)), block_samples=8),
    "mixed": lambda: make_case(mixed((3, 40, 40))),
    "mixed-odd": lambda: make_case(mixed((3, 45, 45))),
    "mixed-hwc": lambda: make_case(mixed((40, 40, 3)), channels_last=3),
}


@pytest.fixture(params=["library", "fallback"])
def blosc2_decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make the codecs decode by ctypes, then through the blosc2 package."""
    use_decoder(request.param, monkeypatch)
    return str(request.param)


def use_decoder(prefer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(blosc2_library._loaded, "library", blosc2_library.decompressor(prefer))


def _codec_params() -> list[Any]:
    params = []
    for name, codec in CODECS.items():
        params.append(pytest.param((codec, "library"), id=name))
        if name.startswith("blosc"):
            params.append(pytest.param((codec, "fallback"), id=f"{name}-fallback"))
    return params


@pytest.fixture(params=_codec_params())
def codec(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Codec:
    """Every codec with its default options, unresolved; Blosc ones also with the fallback decoder."""
    found, prefer = request.param
    use_decoder(prefer, monkeypatch)
    return found


@pytest.fixture(params=[pytest.param(codec, id=name) for name, codec in CODECS.items()])
def encoder(request: pytest.FixtureRequest) -> Codec:
    """As `codec`, once each: for what no decoder has a part in."""
    return request.param


@cache
def cached_case(name: str) -> Case:
    case = CASES[name]()
    case.chunk.flags.writeable = False
    return case


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return cached_case(request.param)


@pytest.fixture
def make() -> Callable[[str], Case]:
    """Make one chunk by its name."""
    return cached_case
