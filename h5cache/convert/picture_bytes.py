"""The bytes of a picture file: read them, and see that they are whole, before a decoder does. No pixels here."""

from __future__ import annotations

import os
import stat

from h5cache.convert.sources.source import BadSampleError

__all__ = ["check_pixels", "check_whole", "read_picture_file"]

#: A header that claims more is refused before memory is asked for. 2**28 pixels (16,384 squared, WebP's own limit)
#: take 0.8 GB; OpenCV alone would go on to 2**30, 3.2 GB.
MAX_PIXELS = 2**28
#: Real headers have tens of markers. A file of nothing but fill bytes must not keep a worker busy for minutes.
MAX_MARKERS = 65_536


def read_picture_file(path: str | bytes | os.PathLike[str]) -> bytes:
    """Return a file's bytes; BadSampleError where it cannot be read or is empty."""
    try:
        # One open and one read of the whole file, unbuffered: 5 us for a warm file, np.fromfile 12.
        with open(path, "rb", buffering=0, opener=_open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise BadSampleError("not a file but a pipe, a device or the like")
            data = file.read()
    except OSError as exc:
        raise BadSampleError(exc.strerror or str(exc)) from exc
    if not data:
        raise BadSampleError("the file is empty")
    return data


def _open_at_once(path: str, flags: int) -> int:
    # A pipe would keep us waiting for somebody who writes.
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def check_whole(data: bytes) -> None:
    """Raise BadSampleError where a JPEG or PNG is cut short or claims a monstrous size. Trailing bytes are fine."""
    if not data:
        raise BadSampleError("the file is empty")
    if data.startswith(b"\xff\xd8"):
        _check_whole_jpeg(data)
    elif data.startswith(b"\x89PNG\r\n\x1a\n"):
        if data.rfind(b"IEND") < 0:
            raise BadSampleError("the PNG file is truncated: its last chunk is missing")
        check_pixels(int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big"))


def _check_whole_jpeg(data: bytes) -> None:
    """Walk the markers to the pixel data; the end marker must follow it. (A thumbnail's, in the header, won't do.)"""
    place = 2
    for _ in range(MAX_MARKERS):
        if place + 4 > len(data):
            break
        if data[place] != 0xFF:
            return  # not as the standard has it: the decoder shall judge
        marker = data[place + 1]
        if marker == 0xFF:  # fill byte
            place += 1
        elif marker == 0xDA:  # start of scan; an end marker cannot occur inside one, where FF is followed by 00
            if data.rfind(b"\xff\xd9", place) < 0:
                raise BadSampleError("the JPEG file is truncated: its end marker is missing")
            return
        elif marker == 0x01 or 0xD0 <= marker <= 0xD9:  # markers without a length
            place += 2
        else:
            if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # frame header
                check_pixels(int.from_bytes(data[place + 7 : place + 9], "big"), _u16(data, place + 5))
            place += 2 + _u16(data, place + 2)
    raise BadSampleError("the JPEG file is truncated or damaged: no pixels follow its header")


def _u16(data: bytes, place: int) -> int:
    return int.from_bytes(data[place : place + 2], "big")


def check_pixels(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise BadSampleError(f"its header claims {width} x {height} pixels, more than the limit of {MAX_PIXELS:,}")
