"""Compare the codecs on pictures: ratio, encode and decode rate, one thread.

    python benchmarks/codecs.py --images FOLDER --json codecs.json

Repetitions of all codecs are interleaved, so that a slow moment of the machine hits all of them; the best of each
counts. Rates are MB/s of raw data.
"""

from __future__ import annotations

import argparse
import io
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import h5py
import hdf5plugin
import numpy as np
from pictures import generate_pictures, load_pictures

from h5cache.codecs import Blosc, Blosc2, ChunkGeometry, Codec, Raw, Zstd, choose_codec

Array = np.ndarray[Any, Any]
CHUNK_NBYTES = 2_500_000
MEAN, STD = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])
AUTO = "auto"
# Level 5 is hdf5plugin's default. Decoded like all others: the chunk alone, in memory, without libhdf5.
BITSHUFFLE_1, BITSHUFFLE_5 = "blosc2 bitshuffle", "blosc2 bitshuffle level 5"
# The same as users of h5py meet it: pixels in n-D order, decoded by the HDF5 filter.
H5PY_1, H5PY_5 = "h5py bitshuffle", "h5py bitshuffle level 5"
# Level 6 is zlib's default, which most programs write. OpenCV's own default looks for runs only: larger, but faster.
PNG_OPENCV, PNG_6 = "PNG (OpenCV's default)", "PNG level 6"


@dataclass
class Contestant:
    """One way to store one data set, and how it did."""

    data: str
    name: str
    encode: Callable[[], list[bytes]]
    decode: Callable[[list[bytes]], None]
    raw_nbytes: int
    note: str = ""
    stored_nbytes: int = 0
    encode_s: float = float("inf")
    decode_s: float = float("inf")

    def result(self) -> dict[str, Any]:
        return {
            "data": self.data,
            "codec": self.name,
            "note": self.note,
            "ratio": self.raw_nbytes / self.stored_nbytes,
            "encode_mb_s": self.raw_nbytes / self.encode_s / 1e6,
            "decode_mb_s": self.raw_nbytes / self.decode_s / 1e6,
        }


def codec_contestant(data: str, name: str, codec: Codec, chunks: list[Array], note: str = "") -> Contestant:
    out = np.empty_like(chunks[0])

    def decode(stored: list[bytes]) -> None:
        for chunk in stored:
            codec.decode(chunk, out)

    return Contestant(
        data, name, lambda: [codec.encode(c) for c in chunks], decode, sum(c.nbytes for c in chunks), note
    )


def h5py_contestant(data: str, name: str, array: Array, samples: int, clevel: int) -> Contestant:
    out = np.empty_like(array)
    plugin = hdf5plugin.Blosc2("zstd", clevel, hdf5plugin.Blosc2.BITSHUFFLE)

    def encode() -> list[bytes]:
        memory = io.BytesIO()
        with h5py.File(memory, "w") as file:
            file.create_dataset("field", data=array, chunks=(samples, *array.shape[1:]), compression=plugin)
        return [memory.getvalue()]

    def decode(stored: list[bytes]) -> None:
        with h5py.File(io.BytesIO(stored[0]), "r") as file:
            file["field"].read_direct(out)

    return Contestant(data, name, encode, decode, array.nbytes)


def png_contestant(data: str, name: str, pictures: Array, options: list[int]) -> Contestant:
    def encode() -> list[bytes]:
        return [cv2.imencode(".png", picture, options)[1].tobytes() for picture in pictures]

    def decode(stored: list[bytes]) -> None:
        for file in stored:
            cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_UNCHANGED)

    return Contestant(data, name, encode, decode, pictures.nbytes)


def contestants(data: str, array: Array, channels_last: int = 1) -> list[Contestant]:
    sample_nbytes = array.nbytes // len(array)
    samples = max(1, min(len(array), CHUNK_NBYTES // sample_nbytes))
    chunks = [array[i : i + samples] for i in range(0, len(array) - samples + 1, samples)]
    geometry = ChunkGeometry(array.itemsize, sample_nbytes, 1, samples, channels_last)
    named: dict[str, Codec] = {
        "blosc2 bytedelta": Blosc2(),
        "blosc2 bytedelta level 3": Blosc2(clevel=3),
        "blosc2 shuffle+bytedelta": Blosc2(filter="shuffle+bytedelta"),
        "blosc2 shuffle": Blosc2(filter="shuffle"),
        BITSHUFFLE_1: Blosc2(filter="bitshuffle"),
        BITSHUFFLE_5: Blosc2(filter="bitshuffle", clevel=5),
        "blosc2 none": Blosc2(filter="none"),
        "blosc2 none level 3": Blosc2(filter="none", clevel=3),
        "blosc2 lz4 bytedelta": Blosc2(cname="lz4"),
        "blosc2 lz4 bitshuffle": Blosc2(cname="lz4", filter="bitshuffle"),
        "blosc shuffle": Blosc(),
        "blosc bitshuffle": Blosc(shuffle="bitshuffle"),
        "zstd": Zstd(),
        "none": Raw(),
    }
    choice = choose_codec(chunks[0], geometry).codec
    rows = [codec_contestant(data, AUTO, choice, chunks, " ".join(str(v) for v in choice.to_config().values()))]
    rows += [codec_contestant(data, name, codec.resolve(geometry), chunks) for name, codec in named.items()]
    whole = array[: len(chunks) * samples]
    return [*rows, h5py_contestant(data, H5PY_1, whole, samples, 1), h5py_contestant(data, H5PY_5, whole, samples, 5)]


def run(rows: list[Contestant], repetitions: int) -> None:
    """Time every contestant, each repetition going through all of them."""
    rows[0].decode(rows[0].encode())  # loads the libraries
    for _ in range(repetitions):
        for row in rows:
            start = time.perf_counter()
            stored = row.encode()
            middle = time.perf_counter()
            row.decode(stored)
            stop = time.perf_counter()
            row.stored_nbytes = sum(map(len, stored))
            row.encode_s = min(row.encode_s, middle - start)
            row.decode_s = min(row.decode_s, stop - middle)


def data_sets(pictures: Array) -> dict[str, tuple[Array, int]]:
    planar = np.ascontiguousarray(pictures.transpose(0, 3, 1, 2))
    normalised = ((planar / np.float32(255)) - MEAN[:, None, None]) / STD[:, None, None]
    return {
        "CHW uint8": (planar, 1),
        "HWC uint8": (pictures, pictures.shape[-1]),
        "CHW float32": (normalised.astype(np.float32), 1),
        "CHW float16": (normalised.astype(np.float16), 1),
    }


def print_table(results: list[dict[str, Any]]) -> None:
    print(f"{'data':<13}{'codec':<27}{'ratio':>7}{'encode MB/s':>13}{'decode MB/s':>13}")
    for row in results:
        print(
            f"{row['data']:<13}{row['codec']:<27}{row['ratio']:>7.2f}{row['encode_mb_s']:>13,.0f}"
            f"{row['decode_mb_s']:>13,.0f}  {row['note']}"
        )


def print_goals(results: list[dict[str, Any]]) -> None:
    decode = {row["codec"]: row["decode_mb_s"] for row in results if row["data"] == "HWC uint8"}
    decode |= {row["codec"]: row["decode_mb_s"] for row in results if row["data"] == "CHW uint8"}
    ratio = next(row["ratio"] for row in results if row["data"] == "CHW uint8" and row["codec"] == AUTO)
    print("\nCHW uint8, goals:")
    print_goal("auto: stored / raw", 1 / ratio, 0.55, reached=1 / ratio <= 0.55)
    bitshuffles = [(rival, 1.25) for rival in (BITSHUFFLE_1, BITSHUFFLE_5, H5PY_1, H5PY_5)]
    for rival, goal in [*bitshuffles, (PNG_OPENCV, 8.0), (PNG_6, 8.0)]:
        value = decode[AUTO] / decode[rival]
        print_goal(f"auto decode / {rival}", value, goal, reached=value >= goal)


def print_goal(what: str, value: float, goal: float, *, reached: bool) -> None:
    print(f"  {what:<40}{value:>7.2f}   goal {goal:<6}{'reached' if reached else 'MISSED'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, help="a folder of pictures (default: generated ones)")
    parser.add_argument("--count", type=int, default=64, help="how many pictures")
    parser.add_argument("--repeat", type=int, default=7, help="repetitions; the best counts")
    parser.add_argument("--json", type=Path, help="also write the results here")
    parser.add_argument("--tiny", action="store_true", help="a few small pictures, one repetition: does it run?")
    options = parser.parse_args()
    count, size, repeat = (4, 56, 1) if options.tiny else (options.count, 224, options.repeat)
    pictures = load_pictures(options.images, count, size) if options.images else generate_pictures(count, size)
    results: list[dict[str, Any]] = []
    for data, (array, channels_last) in data_sets(pictures).items():
        rows = contestants(data, array, channels_last)
        if data == "HWC uint8":
            rows.append(png_contestant(data, PNG_OPENCV, pictures, []))
            rows.append(png_contestant(data, PNG_6, pictures, [cv2.IMWRITE_PNG_COMPRESSION, 6]))
        run(rows, repeat)
        results += [row.result() for row in rows]
    print(f"{len(pictures)} pictures of {size} px, best of {repeat} interleaved repetitions, one thread\n")
    if options.tiny:
        print("a tiny run: the figures mean nothing\n")
    print_table(results)
    print_goals(results)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
