"""Read samples from `.pt` files, from zipped `.pt` files in two ways, and from h5cache: time and bytes on disk.

    python benchmarks/pt_files.py --images FOLDER --json pt_files.json

Normalised float32 pictures and the same as uint8. Every way reads the same samples in the same random order, from a
warm page cache; repetitions of all ways are interleaved, so that a slow moment of the machine hits all of them.
Every sample of h5cache is compared with its `.pt` file, bit for bit, before anything is timed.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import statistics
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pictures import generate_pictures, load_pictures

from h5cache import H5TensorDataset, Writer

MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
PLAIN, UNPACK, OPEN = ".pt, torch.load", "zipped .pt, shutil.unpack_archive", "zipped .pt, zipfile.open"
SINGLE, LOADER = "h5cache, ds[i]", "h5cache, Loader"


@dataclass
class Way:
    """One way to read all samples of one form, and how long it took."""

    form: str
    name: str
    nbytes: int
    read: Callable[[], int]
    num_samples: int
    seconds: list[float] = field(default_factory=list)
    #: Of all threads: what it costs, whoever else uses the machine.
    cpu_seconds: list[float] = field(default_factory=list)

    def measure(self) -> None:
        started, cpu_started = time.perf_counter(), time.process_time()
        count = self.read()
        self.seconds.append(time.perf_counter() - started)
        self.cpu_seconds.append(time.process_time() - cpu_started)
        assert count == self.num_samples, (self.name, count)

    def result(self) -> dict[str, Any]:
        per_thousand = [1000 * seconds / self.num_samples for seconds in self.seconds]
        return {
            "form": self.form,
            "way": self.name,
            "nbytes": self.nbytes,
            "median_s_per_1000": statistics.median(per_thousand),
            "best_s_per_1000": min(per_thousand),
            "cpu_s_per_1000": 1000 * statistics.median(self.cpu_seconds) / self.num_samples,
        }


def prepare(form: str, images: torch.Tensor, home: Path, batch_size: int, threads: int | None) -> list[Way]:
    """Write one form in every way; return the ways to read it."""
    plain, zipped, out = home / "pt", home / "zip", home / "dataset.h5"
    plain.mkdir(parents=True)
    zipped.mkdir()
    for number, image in enumerate(images):
        torch.save(image.clone(), plain / f"{number}.pt")
        with zipfile.ZipFile(zipped / f"{number}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.write(plain / f"{number}.pt", f"{number}.pt")
    with Writer(out) as writer:
        for batch in images.split(batch_size):
            writer.append(image=batch)
    dataset = H5TensorDataset(out)
    for number, image in enumerate(images):
        assert dataset[number][0].numpy().tobytes() == image.numpy().tobytes(), f"{form}: sample {number} differs"
    order = np.random.default_rng(0).permutation(len(images)).tolist()
    loader = dataset.loader(batch_size=batch_size, shuffle=True, threads=threads)

    def read_plain() -> int:
        return sum(torch.load(plain / f"{number}.pt", weights_only=True).ndim == 3 for number in order)

    def read_unpacked() -> int:
        count = 0
        with tempfile.TemporaryDirectory(dir=home) as temporary:
            for number in order:
                shutil.unpack_archive(zipped / f"{number}.zip", temporary)
                unpacked = os.path.join(temporary, f"{number}.pt")
                count += torch.load(unpacked, weights_only=True).ndim == 3
                os.remove(unpacked)
        return count

    def read_opened() -> int:
        count = 0
        for number in order:
            with zipfile.ZipFile(zipped / f"{number}.zip") as archive, archive.open(f"{number}.pt") as file:
                count += torch.load(io.BytesIO(file.read()), weights_only=True).ndim == 3
        return count

    def read_single() -> int:
        return sum(dataset[number][0].ndim == 3 for number in order)

    def read_loader() -> int:
        return sum(len(batch[0]) for batch in loader)

    sizes = {"pt": folder_nbytes(plain), "zip": folder_nbytes(zipped), "h5": out.stat().st_size}
    ways = [
        (PLAIN, "pt", read_plain),
        (UNPACK, "zip", read_unpacked),
        (OPEN, "zip", read_opened),
        (SINGLE, "h5", read_single),
        (LOADER, "h5", read_loader),
    ]
    return [Way(form, name, sizes[kind], read, len(images)) for name, kind, read in ways]


def folder_nbytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def judge(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Say, for each form and door, whether h5cache is smaller than the zip and faster than the plain `.pt`.

    Faster is "yes" or "no" where median and best agree, and "undecided" where they do not: a busy machine.
    """
    by_way = {(result["form"], result["way"]): result for result in results}
    verdict: dict[str, dict[str, str]] = {}
    for form in dict.fromkeys(result["form"] for result in results):
        plain, zipped = by_way[form, PLAIN], by_way[form, OPEN]
        for door in (SINGLE, LOADER):
            ours = by_way[form, door]
            faster = {ours[key] < plain[key] for key in ("median_s_per_1000", "best_s_per_1000")}
            verdict[f"{form}: {door}"] = {
                "smaller_than_zip": yes(ours["nbytes"] < zipped["nbytes"]),
                "faster_than_pt": "undecided" if len(faster) > 1 else yes(faster.pop()),
            }
    said = {word for name, one in verdict.items() if name.endswith(LOADER) for word in one.values()}
    reached = next(word for word in ("no", "undecided", "yes") if word in said)
    return {"reached": reached, "by_door": verdict}


def print_table(results: list[dict[str, Any]], goal: dict[str, Any]) -> None:
    columns = f"{'bytes on disk':>16}{'of .pt':>8}{'median':>9}{'best':>8}{'CPU':>8}  seconds per 1,000 samples"
    print(f"\n{'':<8}  {'way':<34}{columns}")
    plain = {result["form"]: result for result in results if result["way"] == PLAIN}
    for result in results:
        first = plain[result["form"]]
        speed = first["median_s_per_1000"] / result["median_s_per_1000"]
        words = (
            "" if result is first else f"{speed:.1f} times as fast" if speed >= 1 else f"{1 / speed:.1f} times slower"
        )
        times = [result[f"{which}_s_per_1000"] for which in ("median", "best", "cpu")]
        size = f"{result['nbytes']:>16,}{result['nbytes'] / first['nbytes']:>8.0%}"
        print(
            f"{result['form']:<8}  {result['way']:<34}{size}{times[0]:>9.3f}{times[1]:>8.3f}{times[2]:>8.3f}  {words}"
        )
    print()
    for name, one in goal["by_door"].items():
        smaller, faster = one["smaller_than_zip"], one["faster_than_pt"]
        print(f"{name:<26} smaller than the zip: {smaller:<4} faster than the plain .pt: {faster}")
    print(f"goal: Loader both smaller than the zip and faster than the plain .pt: reached {goal['reached']}")


def yes(value: bool) -> str:
    return "yes" if value else "no"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, metavar="DIR", help="a folder of pictures (default: generated ones)")
    parser.add_argument("--count", type=int, default=512, help="pictures (512)")
    parser.add_argument("--size", type=int, default=224, help="side in pixels (224)")
    parser.add_argument("--batch-size", type=int, default=64, help="of the Loader (64)")
    parser.add_argument("--threads", type=int, help="of the Loader (default: its own)")
    parser.add_argument("--repeats", type=int, default=5, help="(5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there, too")
    parser.add_argument("--tiny", action="store_true", help="a few small pictures: does it still run?")
    args = parser.parse_args()
    if args.tiny:
        args.count, args.size, args.batch_size, args.repeats = 16, 64, 8, 2
    stored = (
        load_pictures(args.images, args.count, args.size) if args.images else generate_pictures(args.count, args.size)
    )
    bytes_ = torch.from_numpy(stored).permute(0, 3, 1, 2).contiguous()
    floats = (bytes_.float().div(255) - MEAN.view(3, 1, 1)) / STD.view(3, 1, 1)
    with tempfile.TemporaryDirectory(prefix="h5cache-pt-") as home:
        ways = [
            way
            for form, images in (("float32", floats), ("uint8", bytes_))
            for way in prepare(form, images, Path(home, form), args.batch_size, args.threads)
        ]
        for way in ways:  # once for the page cache, and for threads to start
            way.measure()
            way.seconds.clear()
            way.cpu_seconds.clear()
        for _ in range(args.repeats):
            for way in ways:
                way.measure()
    results = [way.result() for way in ways]
    goal = judge(results)
    shape = "x".join(map(str, bytes_.shape[1:]))
    print(
        f"{len(bytes_)} pictures {shape} of {args.images or 'benchmarks/pictures.py'}, {os.cpu_count()} cores, ", end=""
    )
    print(f"torch {torch.__version__}, {args.repeats} repetitions, load average {os.getloadavg()[0]:.1f}")
    print_table(results, goal)
    if args.json:
        document = {
            "count": len(bytes_),
            "shape": list(bytes_.shape[1:]),
            "load_average": os.getloadavg()[0],
            "results": results,
            "goal": goal,
        }
        args.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
