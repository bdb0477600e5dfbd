"""Samples as pictures for the eye: which fields are pictures, how their values become 8-bit pixels. Reads nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from h5cache.schema import Field

__all__ = ["Pixels", "Span", "as_numbers", "display_span", "encode_picture", "picture_axes", "shrink", "to_display"]

#: Longest side of a picture in a grid: twice what is shown, for screens of high density.
THUMB_SIDE = 160
#: Photographs in a page: no visible loss at this size, a third of the bytes of PNG.
JPEG_QUALITY = 85
#: A sample of two dimensions is taken for a grey picture from this side up, and to this ratio of its sides.
GREY_SIDE, GREY_ASPECT = 8, 4

Array = npt.NDArray[Any]
Pixels = npt.NDArray[np.uint8]
#: Of each channel, the value that is black and the value that is full bright.
Span = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]


def picture_axes(field: Field) -> str | None:
    """Return how a sample is a picture: "CHW", "HWC", "HW" (two dimensions, grey), or None.

    >>> picture_axes(Field("uint8", (28, 28))), picture_axes(Field("float32", (512,)))
    ('HW', None)
    """
    if field.layout is not None:
        return field.layout
    if len(field.shape) == 2:
        short, long = sorted(field.shape)
        return "HW" if short >= GREY_SIDE and long <= GREY_ASPECT * short else None
    return None


def as_numbers(rows: Array, field: Field) -> Array:
    """Return stored values as numbers one can reckon with: bfloat16 bits become float32, truth values 0 and 1."""
    if field.dtype == "bfloat16":
        return (rows.astype(np.uint32) << 16).view(np.float32)
    return rows.astype(np.uint8) if field.dtype == "bool" else rows


def to_display(rows: Array, field: Field, span: Span | None = None) -> list[Pixels]:
    """Return samples as pictures for the eye: uint8, (height, width, 1 or 3). NaN is shown black.

    8-bit pixels stay as they are; others are stretched over `span`, by default the `display_span` of these samples.
    """
    values = _channels_last(rows, field)
    if values.dtype != np.uint8:
        low, high = display_span(rows, field) if span is None else span
        with np.errstate(invalid="ignore", over="ignore"):
            scaled = (values.astype(np.float32) - low) * np.where(high > low, 255 / np.maximum(high - low, 1e-30), 0)
        values = np.clip(np.nan_to_num(scaled, nan=0, posinf=255, neginf=0), 0, 255).round().astype(np.uint8)
    elif field.dtype == "bool":
        values = values * np.uint8(255)
    return [np.ascontiguousarray(one) for one in values]


def display_span(rows: Array, field: Field) -> Span:
    """Return which values of each channel are black and full bright.

    Floats of 0..1 are taken for what they are. Anything else spans its least to its largest value but for 0.1 % at
    either end, each channel by itself: for normalised pictures that undoes the normalisation.
    """
    values = _channels_last(rows, field).astype(np.float32)
    low, high = np.zeros(values.shape[-1], np.float32), np.ones(values.shape[-1], np.float32)
    spans = []
    for channel in range(values.shape[-1]):
        known = values[..., channel]
        known = known[np.isfinite(known)]
        spans.append(
            np.percentile(known[:: max(1, known.size // 200_000)], (0, 0.1, 99.9, 100)) if known.size else None
        )
    floats = field.dtype in ("float16", "float32", "float64", "bfloat16")
    if floats and all(span is None or (span[0] >= 0 and span[3] <= 1) for span in spans):
        return low, high
    for channel, span in enumerate(spans):
        if span is not None:
            low[channel], high[channel] = span[1:3]
    return low, high


def _channels_last(rows: Array, field: Field) -> Array:
    """Return (samples, height, width, 1 or 3) numbers; of four channels the first three."""
    axes, values = picture_axes(field), as_numbers(rows, field)
    if axes == "CHW":
        values = values.transpose(0, 2, 3, 1)
    elif axes == "HW":
        values = values[..., np.newaxis]
    return values[..., :3] if values.shape[-1] >= 3 else values[..., :1]


def shrink(pixels: Pixels, side: int = THUMB_SIDE) -> Pixels:
    """Return a picture whose longest side is at most `side`; a smaller one as it is."""
    import cv2

    height, width, channels = pixels.shape
    if max(height, width) <= side:
        return pixels
    scale = side / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_AREA), np.uint8).reshape(
        size[1], size[0], channels
    )


def encode_picture(pixels: Pixels, kind: str) -> bytes:
    """Return a picture (RGB or grey) as the bytes of a PNG or JPEG file."""
    import cv2

    options = [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY] if kind == "jpeg" else []
    coded, data = cv2.imencode(f".{kind}", pixels[..., ::-1] if pixels.shape[-1] == 3 else pixels, options)
    if not coded:
        raise ValueError(f"OpenCV could not encode a picture of {pixels.shape} as {kind}")
    return bytes(data)
