"""Turn a picture file into the array that is stored: decode, orient, scale, crop, colour, normalise. No folders here.

What OpenCV makes of files that are not plain 8-bit RGB, and h5cache with it:
- EXIF orientation is applied.
- Greyscale becomes three equal channels, palettes their colours, CMYK JPEG (Adobe's inverted kind too) RGB.
- Transparency is dropped, not blended: the colours under it stay as they are stored.
- 16 bits become 8: PNG keeps the high byte (v >> 8), colour TIFF is rounded (v / 257). Float TIFF is refused.
- `color="gray"` is what `IMREAD_GRAYSCALE` gives: for JPEG the stored luma, without a detour through RGB.
- Animations and multi-page files give their first picture.

A JPEG without its end marker, or a PNG without its last chunk, is a bad sample: libjpeg alone would fill what is
missing with grey and only warn. Flipped bits inside JPEG, BMP, TIFF and WebP data leave no trace and go unseen.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from h5cache.convert.picture_bytes import check_pixels, check_whole, read_picture_file
from h5cache.convert.shrink import crops_exactly, shrink_centre
from h5cache.convert.sources.source import BadSampleError
from h5cache.errors import SchemaError
from h5cache.schema import Field

__all__ = [
    "COLORS",
    "DTYPES",
    "FITS",
    "LAYOUTS",
    "PictureOptions",
    "decode_picture",
    "opencv_in_worker",
    "parse_normalize",
]

FITS = ("crop", "pad", "stretch")
LAYOUTS = ("CHW", "HWC")
COLORS = ("rgb", "gray")
DTYPES = ("uint8", "float16", "float32")

Pixels: TypeAlias = npt.NDArray[np.uint8]
Normalize: TypeAlias = "tuple[tuple[float, ...], tuple[float, ...]]"

#: As torchvision's models were trained.
IMAGENET: Normalize = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclass(frozen=True)
class PictureOptions:
    """How pictures become samples of one shape. The default is ImageNet's usual evaluation crop.

    Args:
        resize: length of the short side before cropping, for fit="crop"; None: pictures are not scaled.
        size: height and width of the result; None, for fit="crop": not cropped, so pictures keep their shapes, which
            needs a transform that makes them one shape, or pictures that have it already.
        fit: "crop" scales the short side to `resize` and takes the centre; "pad" scales the long side to `size` and
            adds black equally around; "stretch" scales both sides to `size`.
        layout: "CHW" or "HWC".
        color: "rgb" or "gray" (one channel).
        dtype: "uint8", or "float32"/"float16" of the range 0 to 1, as torchvision's ToTensor has it.
        normalize: "imagenet", or (mean, std) of numbers in 0 to 1, one per channel or one for all: bit for bit what
            ToTensor and Normalize give; float16 is that rounded.

    >>> PictureOptions(size=192).field().shape
    (3, 192, 192)
    """

    resize: int | None = 256
    size: int | None = 224
    fit: str = "crop"
    layout: str = "CHW"
    color: str = "rgb"
    dtype: str = "uint8"
    normalize: Any = None

    def __post_init__(self) -> None:
        for name, allowed in (("fit", FITS), ("layout", LAYOUTS), ("color", COLORS), ("dtype", DTYPES)):
            if getattr(self, name) not in allowed:
                raise SchemaError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        for name in ("resize", "size"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 16384):
                raise SchemaError(f"{name} must be a whole number of pixels from 1 to 16384, got {value!r}")
        if self.fit != "crop" and self.size is None:
            raise SchemaError(f"fit={self.fit!r} needs a size")
        if self.fit == "crop" and self.resize is not None and self.size is not None and self.resize < self.size:
            raise SchemaError(
                f"size {self.size} cannot be cropped from pictures whose short side is resized to {self.resize}: "
                f"make resize at least {self.size}"
            )
        object.__setattr__(self, "normalize", self._checked_normalize())

    def _checked_normalize(self) -> Normalize | None:
        if self.normalize is None:
            return None
        if self.dtype == "uint8":
            raise SchemaError(
                "normalized pictures are floats: give dtype float32 or float16 (stored exactly as 8 bits)"
            )
        given = IMAGENET if self.normalize == "imagenet" else self.normalize
        try:
            mean, std = (_numbers(part) for part in given)
        except (TypeError, ValueError) as exc:
            raise SchemaError(f"normalize must be 'imagenet' or (mean, std), got {self.normalize!r}") from exc
        for name, part in (("mean", mean), ("std", std)):
            if len(part) not in (1, self.channels):
                raise SchemaError(
                    f"normalize: {len(part)} numbers of {name} for {self.color} pictures of {self.channels} channels"
                )
        if not all(np.isfinite([*mean, *std])) or not all(part > 0 for part in std):
            raise SchemaError(f"normalize: mean must be finite and std positive, got {mean} and {std}")
        return mean * (self.channels // len(mean)), std * (self.channels // len(std))

    @property
    def channels(self) -> int:
        return 3 if self.color == "rgb" else 1

    @property
    def has_fixed_size(self) -> bool:
        """True where all pictures come out in one shape."""
        return self.size is not None

    def field(self) -> Field:
        """Return the field that holds these pictures; SchemaError where they have no common shape."""
        if self.size is None:
            raise SchemaError("size=None leaves pictures in their own shapes: a field needs one shape")
        plane = (self.size, self.size)
        shape = (self.channels, *plane) if self.layout == "CHW" else (*plane, self.channels)
        return Field(self.dtype, shape, layout=self.layout)

    def to_config(self) -> dict[str, Any]:
        """Return the options as JSON values; `from_config` is the way back."""
        config: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return config

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> PictureOptions:
        return cls(**config)


def parse_normalize(text: str) -> str | Normalize:
    """Read `--normalize`: "imagenet", "MEAN,STD", or all means followed by all deviations."""
    if text == "imagenet":
        return text
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError as exc:
        raise SchemaError(f"normalize must be 'imagenet' or numbers MEAN,STD, got {text!r}") from exc
    if len(numbers) not in (2, 6):
        raise SchemaError(f"normalize takes MEAN,STD or three means and three deviations, got {len(numbers)} numbers")
    half = len(numbers) // 2
    return numbers[:half], numbers[half:]


def decode_picture(data_or_path: bytes | str | os.PathLike[str] | Pixels, options: PictureOptions) -> npt.NDArray[Any]:
    """Return a picture as `options` say, C-contiguous and the caller's. BadSampleError where it cannot be decoded.

    The pixels are those of `cv2.imread`: the file is read once and decoded from memory by the same decoder.
    """
    is_data = isinstance(data_or_path, bytes | bytearray | memoryview | np.ndarray)
    data = bytes(data_or_path) if is_data else read_picture_file(data_or_path)  # type: ignore[arg-type]
    decoded = _decode(data, options.color)
    return _finish(_fit(decoded, options), options)


@contextmanager
def opencv_in_worker() -> Iterator[None]:
    """Turn OpenCV's own threads and log off, and back on after: both are global to the process.

    Pictures are decoded one per process; a decoder's complaint becomes a BadSampleError, and need not be printed
    too. (libpng and libjpeg write some to stderr by themselves, which nothing in OpenCV can stop.)
    """
    import cv2

    threads, level = cv2.getNumThreads(), cv2.utils.logging.getLogLevel()
    cv2.setNumThreads(0)
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
    try:
        yield
    finally:
        cv2.setNumThreads(threads)
        cv2.utils.logging.setLogLevel(level)


def _decode(data: bytes, color: str) -> Pixels:
    """Decode to (H, W, 3) BGR or (H, W) grey, as `cv2.imread` does."""
    import cv2

    check_whole(data)
    flag = cv2.IMREAD_COLOR if color == "rgb" else cv2.IMREAD_GRAYSCALE
    try:
        picture = cv2.imdecode(np.frombuffer(data, np.uint8), flag)
    except cv2.error as exc:
        raise BadSampleError(f"OpenCV cannot decode it: {_reason(exc)}") from exc
    if picture is None:
        raise BadSampleError("not a picture that OpenCV can decode, or a damaged one")
    return _as_pixels(picture)


def _as_pixels(picture: Any) -> Pixels:
    """OpenCV's types allow any dtype; 8 bits go in here and 8 come out."""
    pixels: Pixels = picture
    return pixels


def _reason(exc: Exception) -> str:
    err = str(getattr(exc, "err", "") or exc)
    return "its size is beyond OpenCV's limit" if "MAX_IMAGE" in err else err.strip().splitlines()[-1]


def _fit(picture: Pixels, options: PictureOptions) -> Pixels:
    height, width = picture.shape[:2]
    size = options.size
    if options.fit == "stretch" and size is not None:
        return _scale(picture, size, size)
    if options.fit == "pad" and size is not None:
        return _pad(picture, size)
    short = min(height, width)
    if options.resize is not None and short != options.resize:
        resize = options.resize
        target = [round(side * resize / short) for side in (height, width)]
        # A line of pixels blown up to a picture could ask for any memory.
        check_pixels(target[1], target[0])
        if size is not None and target[0] < height and target[1] < width and crops_exactly():
            return shrink_centre(picture, (target[0], target[1]), size)
        picture = _scale(picture, target[0], target[1])
        height, width = target
    if size is None:
        return picture
    if min(height, width) < size:
        raise BadSampleError(f"the picture of {width} x {height} pixels is smaller than the crop of {size}")
    top, left = (height - size) // 2, (width - size) // 2
    return picture[top : top + size, left : left + size]


def _pad(picture: Pixels, size: int) -> Pixels:
    height, width = picture.shape[:2]
    long = max(height, width)
    scaled = _scale(picture, max(1, round(height * size / long)), max(1, round(width * size / long)))
    out = np.zeros((size, size, *picture.shape[2:]), np.uint8)
    top, left = (size - scaled.shape[0]) // 2, (size - scaled.shape[1]) // 2
    out[top : top + scaled.shape[0], left : left + scaled.shape[1]] = scaled
    return out


def _scale(picture: Pixels, height: int, width: int) -> Pixels:
    """Scale by INTER_AREA where sides shrink and INTER_CUBIC where they grow; one after the other where they differ."""
    import cv2

    smaller = min(height, picture.shape[0]), min(width, picture.shape[1])
    if smaller != picture.shape[:2]:
        picture = _as_pixels(cv2.resize(picture, smaller[::-1], interpolation=cv2.INTER_AREA))
    if (height, width) != picture.shape[:2]:
        picture = _as_pixels(cv2.resize(picture, (width, height), interpolation=cv2.INTER_CUBIC))
    return picture


def _finish(picture: Pixels, options: PictureOptions) -> npt.NDArray[Any]:
    """BGR or grey to the colour order, layout and dtype asked for."""
    import cv2

    if options.color == "gray":
        arranged = np.ascontiguousarray(picture[np.newaxis] if options.layout == "CHW" else picture[..., np.newaxis])
    elif options.layout == "HWC":
        arranged = _as_pixels(cv2.cvtColor(picture, cv2.COLOR_BGR2RGB))
    else:
        # cv2.split into the rows of the result: 5 us for 224 px, a transposing copy 33.
        arranged = np.empty((3, *picture.shape[:2]), np.uint8)
        cv2.split(picture, [arranged[2], arranged[1], arranged[0]])
    if options.dtype == "uint8":
        return arranged
    table = _float_table(options)
    out = np.empty(arranged.shape, options.dtype)
    for channel in range(options.channels):
        place = channel if options.layout == "CHW" else (..., channel)
        out[place] = table[channel][arranged[place]]
    return out


@lru_cache(maxsize=8)
def _float_table(options: PictureOptions) -> npt.NDArray[Any]:
    """The value of each of 256 levels, per channel: the same float32 steps as ToTensor and Normalize, in order."""
    levels = np.tile(np.arange(256, dtype=np.float32) / np.float32(255), (options.channels, 1))
    if options.normalize is not None:
        mean, std = (np.array(part, np.float32)[:, np.newaxis] for part in options.normalize)
        levels = (levels - mean) / std
    return levels.astype(options.dtype)


def _numbers(part: float | Sequence[float]) -> tuple[float, ...]:
    return (float(part),) if isinstance(part, int | float) else tuple(float(value) for value in part)
