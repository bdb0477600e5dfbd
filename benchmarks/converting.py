"""Convert a folder of pictures to 224 px: h5cache beside the limits of the machine and beside its peers.

    python benchmarks/converting.py --images FOLDER --json converting.json
    python benchmarks/converting.py --peers-python /path/to/peers/bin/python ...

Everyone gets the same files, the same OpenCV pipeline and the same number of processes, and runs in a process of its
own: once as users see it, start-up included, and timed from the moment its workers are ready. Peers that cannot be
imported are left out; `--peers-python` looks for them in a virtual environment of their own (some pull a CUDA torch).
At the end: peak memory of h5cache's workers for few and for many samples.
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np

Array = np.ndarray[Any, Any]

RESIZE, SIZE = 256, 224
CHUNK = 16
SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp"}
NUM_CLASSES = 10
GOALS = {"of decode and resize": 0.75, "of decode, resize, encode": 0.9, "ahead of the best peer": 1.5}


# The pipeline, the same for all


def load_picture(path: str) -> Array:
    """What h5cache does by default: short side to 256, centre crop of 224, RGB, CHW."""
    image = cv2.imread(path)
    height, width = image.shape[:2]
    short = min(height, width)
    target = tuple(RESIZE if side == short else round(side * RESIZE / short) for side in (width, height))
    image = cv2.resize(image, target, interpolation=cv2.INTER_AREA if short > RESIZE else cv2.INTER_CUBIC)
    top, left = (image.shape[0] - SIZE) // 2, (image.shape[1] - SIZE) // 2
    crop = image[top : top + SIZE, left : left + SIZE]
    return cv2.cvtColor(crop, cv2.COLOR_BGR2RGB).transpose(2, 0, 1).copy()


def list_pictures(source: str) -> list[tuple[str, int]]:
    files = sorted(path for path in Path(source).rglob("*") if path.suffix.lower() in SUFFIXES)
    classes = sorted({path.parent.name for path in files})
    return [(str(path), classes.index(path.parent.name)) for path in files]


def prepare_source(images: Path | None, root: Path, count: int) -> None:
    """Make class folders of `count` pictures, by links to those that there are, again and again."""
    if images is None:
        from pictures import generate_pictures

        images = root / "generated"
        images.mkdir()
        for number, picture in enumerate(generate_pictures(min(count, 48), 400)):
            cv2.imwrite(
                str(images / f"{number}.jpg"), picture[: 400 - 10 * (number % 8)], [cv2.IMWRITE_JPEG_QUALITY, 90]
            )
    files = sorted(path for path in images.rglob("*") if path.suffix.lower() in SUFFIXES)
    if not files:
        raise SystemExit(f"no pictures in {images}")
    for number in range(count):
        origin = files[number % len(files)]
        link = root / "source" / f"class{number % NUM_CLASSES}" / f"{number:06d}{origin.suffix}"
        link.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(origin.resolve(), link)
        except OSError:
            shutil.copyfile(origin, link)


# Contestants: each is called as fn(source, out, workers) in a process of its own and returns the seconds it took,
# without start-up.


def in_processes(work: Callable[[list[tuple[str, int]], str], None], source: str, out: str, workers: int) -> float:
    """Deal the files to `workers` processes that are up already; return the seconds until all are done."""
    files = list_pictures(source)
    os.makedirs(out, exist_ok=True)
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("fork")) as pool:
        warm_up(pool, workers)
        started = time.perf_counter()
        # Small pieces, so that nobody waits for the last: as fair as a shared queue.
        step = max(1, min(512, len(files) // (4 * workers)))
        pieces = [files[start : start + step] for start in range(0, len(files), step)]
        list(pool.map(work, pieces, [os.path.join(out, f"{number:05d}") for number in range(len(pieces))]))
        return time.perf_counter() - started


def warm_up(pool: Executor, workers: int) -> None:
    list(pool.map(nap, [0.2] * workers))


def nap(seconds: float) -> None:
    cv2.setNumThreads(0)
    time.sleep(seconds)


def decode_only(files: list[tuple[str, int]], _: str) -> None:
    for path, _ in files:
        load_picture(path)


def decode_and_encode(files: list[tuple[str, int]], _: str) -> None:
    from h5cache.codecs import Blosc2
    from h5cache.format.encode import encode_chunk
    from h5cache.format.layout import plan_layout
    from h5cache.schema import Field

    layout = plan_layout(Field("uint8", (3, SIZE, SIZE)), Blosc2(filter="bytedelta"))
    rows = np.empty(layout.chunk_shape, np.uint8)
    for start in range(0, len(files), CHUNK):
        for place, (path, _) in enumerate(files[start : start + CHUNK]):
            rows[place] = load_picture(path)
        encode_chunk(layout, rows, whole=start == 0)  # as h5cache does


def limit_decode(source: str, out: str, workers: int) -> float:
    return in_processes(decode_only, source, out, workers)


def limit_encode(source: str, out: str, workers: int) -> float:
    import h5cache.format.encode  # noqa: F401  not part of the work

    return in_processes(decode_and_encode, source, out, workers)


def h5cache_file(source: str, out: str, workers: int) -> float:
    """With workers that are up already; the command line, start-up and all, is timed from outside."""
    import loky

    from h5cache import convert_dataset
    from h5cache.convert.executor import WORKER_ENVIRONMENT

    pool = loky.ProcessPoolExecutor(workers, env=WORKER_ENVIRONMENT)
    list(pool.map(import_h5cache, [0.3] * workers))
    started = time.perf_counter()
    convert_dataset(source, out + ".h5" if not out.endswith("folder") else out, executor=pool)
    took = time.perf_counter() - started
    pool.shutdown()
    return took


def import_h5cache(seconds: float) -> None:
    import h5cache.convert.task  # noqa: F401

    time.sleep(seconds)


def torch_save(source: str, out: str, workers: int) -> float:
    import torch  # noqa: F401  not part of the work

    return in_processes(save_tensors, source, out, workers)


def save_tensors(files: list[tuple[str, int]], out: str) -> None:
    import torch

    os.makedirs(out)
    for number, (path, label) in enumerate(files):
        torch.save((torch.from_numpy(load_picture(path)), label), os.path.join(out, f"{number:06d}.pt"))


def h5py_gzip(source: str, out: str, workers: int) -> float:
    import h5py  # noqa: F401

    return in_processes(write_gzip, source, out, workers)


def write_gzip(files: list[tuple[str, int]], out: str) -> None:
    import h5py

    with h5py.File(out + ".h5", "w") as file:
        shape = (len(files), 3, SIZE, SIZE)
        images = file.create_dataset("image", shape, "u1", chunks=(1, 3, SIZE, SIZE), compression="gzip")
        for number, (path, _) in enumerate(files):
            images[number] = load_picture(path)
        file["label"] = [label for _, label in files]


def webdataset_shards(source: str, out: str, workers: int) -> float:
    import webdataset  # noqa: F401

    return in_processes(write_webdataset, source, out, workers)


def write_webdataset(files: list[tuple[str, int]], out: str) -> None:
    import webdataset

    with webdataset.TarWriter(out + ".tar") as sink:
        for number, (path, label) in enumerate(files):
            buffer = io.BytesIO()
            np.save(buffer, load_picture(path))
            sink.write({"__key__": f"{number:06d}", "image.npy": buffer.getvalue(), "cls": str(label).encode()})


def mosaic_mds(source: str, out: str, workers: int) -> float:
    import streaming  # noqa: F401

    return in_processes(write_mds, source, out, workers)


def write_mds(files: list[tuple[str, int]], out: str) -> None:
    from streaming import MDSWriter

    columns = {"image": f"ndarray:uint8:3,{SIZE},{SIZE}", "label": "int"}
    with MDSWriter(out=out, columns=columns) as sink:
        for path, label in files:
            sink.write({"image": load_picture(path), "label": label})


def litdata_sample(item: tuple[str, int]) -> dict[str, Any]:
    return {"image": load_picture(item[0]), "label": item[1]}


def litdata_optimize(source: str, out: str, workers: int) -> float:
    import litdata

    files = list_pictures(source)
    started = time.perf_counter()
    litdata.optimize(fn=litdata_sample, inputs=files, output_dir=out, num_workers=workers, chunk_bytes="64MB")
    return time.perf_counter() - started


class Pictures:
    def __init__(self, source: str) -> None:
        self.files = list_pictures(source)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> tuple[Array, int]:
        path, label = self.files[number]
        return load_picture(path), label


def ffcv_writer(source: str, out: str, workers: int) -> float:
    from ffcv.fields import IntField, NDArrayField
    from ffcv.writer import DatasetWriter

    fields = {"image": NDArrayField(np.dtype("uint8"), (3, SIZE, SIZE)), "label": IntField()}
    writer = DatasetWriter(out + ".beton", fields, num_workers=workers)
    started = time.perf_counter()
    writer.from_indexed_dataset(Pictures(source), chunksize=100)
    return time.perf_counter() - started


@dataclass(frozen=True)
class Contestant:
    name: str
    run: Callable[[str, str, int], float]
    #: The module that must be importable; empty: always there.
    needs: str = ""
    kind: str = "peer"


CONTESTANTS = {
    "decode": Contestant("decode and resize", limit_decode, kind="limit"),
    "encode": Contestant("decode, resize, encode, verify", limit_encode, kind="limit"),
    "h5cache": Contestant("h5cache, one file", h5cache_file, kind="h5cache"),
    "h5cache-folder": Contestant("h5cache, a folder", h5cache_file, kind="h5cache"),
    "ffcv": Contestant("FFCV writer", ffcv_writer, "ffcv"),
    "litdata": Contestant("LitData optimize", litdata_optimize, "litdata"),
    "mds": Contestant("MosaicML MDSWriter", mosaic_mds, "streaming"),
    "webdataset": Contestant("WebDataset TarWriter", webdataset_shards, "webdataset"),
    "torch": Contestant("torch.save per sample", torch_save, "torch"),
    "gzip": Contestant("h5py, gzip", h5py_gzip, "h5py"),
}


# Running them


@dataclass
class Result:
    key: str
    name: str
    kind: str
    num_samples: int
    #: Of each round.
    included_s: list[float] = field(default_factory=list)
    excluded_s: list[float] = field(default_factory=list)
    stored_nbytes: int = 0

    @property
    def rate_included(self) -> float:
        return self.num_samples / min(self.included_s)

    @property
    def rate_excluded(self) -> float:
        return self.num_samples / min(self.excluded_s)


def run_contestant(key: str, python: str, source: Path, out: Path, workers: int, result: Result) -> None:
    """Run one contestant in a process of its own and note its times and bytes."""
    command = [
        python,
        __file__,
        "--contestant",
        key,
        "--source",
        str(source),
        "--out",
        str(out),
        "--workers",
        str(workers),
    ]
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    took = time.perf_counter() - started
    if done.returncode:
        raise SystemExit(f"{key} failed:\n{done.stdout}{done.stderr}")
    result.excluded_s.append(float(done.stdout.strip().splitlines()[-1]))
    result.stored_nbytes = count_nbytes(out)
    remove_outputs(out)
    if key.startswith("h5cache"):
        target = f"{out}.h5" if not str(out).endswith("folder") else str(out)
        command = [python, "-m", "h5cache.convert", str(source), target, "--workers", str(workers)]
        started = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        took = time.perf_counter() - started
        remove_outputs(out)
    result.included_s.append(took)


def count_nbytes(out: Path) -> int:
    found = list(out.parent.glob(out.name + "*"))
    return sum(
        one.stat().st_size for path in found for one in ([path] if path.is_file() else path.rglob("*")) if one.is_file()
    )


def remove_outputs(out: Path) -> None:
    for path in out.parent.glob(out.name + "*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    os.sync()  # what one contestant left to be written must not be paid by the next


def can_import(python: str, module: str) -> bool:
    check = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([python, "-c", check], check=False, capture_output=True).returncode == 0


# Memory


def peak_worker_mb(source: Path, out: Path, workers: int) -> float:
    """Convert by the command line and watch its workers; return the largest resident size of any, in MB."""
    command = [sys.executable, "-m", "h5cache.convert", str(source), str(out), "--workers", str(workers)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    peak = 0
    while process.poll() is None:
        for child in read_children(process.pid):
            peak = max(peak, read_peak_kb(child))
        time.sleep(0.02)
    if process.returncode:
        raise SystemExit(f"h5cache failed with {process.returncode}")
    remove_outputs(out)
    return peak / 1000


def read_children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def read_peak_kb(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")), 0)


# Showing


def format_results(results: Sequence[Result]) -> str:
    limits = {result.key: result.rate_excluded for result in results if result.kind == "limit"}
    head = f"{'':<34}{'samples/s':>10}{'with start-up':>15}{'of decode':>11}{'of encode':>11}{'stored MB':>11}"
    lines = [head]
    for result in results:
        of_limits = [
            f"{result.rate_excluded / limits[key]:.2f}" if key in limits else "-" for key in ("decode", "encode")
        ]
        stored = f"{result.stored_nbytes / 1e6:,.0f}" if result.kind != "limit" else "-"
        lines.append(
            f"{result.name:<34}{result.rate_excluded:>10,.0f}{result.rate_included:>15,.0f}"
            f"{of_limits[0]:>11}{of_limits[1]:>11}{stored:>11}"
        )
    return "\n".join(lines)


def format_goals(results: Sequence[Result]) -> str:
    rates = {result.key: result.rate_excluded for result in results}
    peers = [result.rate_included for result in results if result.kind == "peer"]
    lines = []
    for key in (key for key in ("h5cache", "h5cache-folder") if key in rates):
        found = {}
        if "decode" in rates:
            found["of decode and resize"] = rates[key] / rates["decode"]
        if "encode" in rates:
            found["of decode, resize, encode"] = rates[key] / rates["encode"]
        if peers:
            own = next(result.rate_included for result in results if result.key == key)
            found["ahead of the best peer"] = own / max(peers)
        shown = ", ".join(f"{name} {value:.2f} (goal {GOALS[name]})" for name, value in found.items())
        lines.append(f"{CONTESTANTS[key].name}: {shown}")
    return "\n".join(lines)


@contextmanager
def work_folder(where: Path | None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="h5cache-converting-", dir=where) as name:
        yield Path(name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, help="a folder of pictures; default: generated ones")
    parser.add_argument("--count", type=int, default=10_000, help="pictures to convert, repeating those there are")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=2, help="all contestants in turn, so often; the best counts")
    parser.add_argument("--only", help="names of contestants, with commas: " + ", ".join(CONTESTANTS))
    parser.add_argument("--peers-python", help="python of a virtual environment that has the peers")
    parser.add_argument("--memory", default="1000,20000", help="samples for which the workers' memory is shown")
    parser.add_argument("--work", type=Path, help="where to work (default: the system's temporary folder)")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--tiny", action="store_true", help="a few pictures, one round: shows that it runs")
    parser.add_argument("--contestant", choices=CONTESTANTS, help=argparse.SUPPRESS)
    parser.add_argument("--source", help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.contestant:
        print(CONTESTANTS[args.contestant].run(args.source, args.out, args.workers))
        return
    if args.tiny:
        args.count, args.rounds, args.memory = 64, 1, "32,64"
        args.only = args.only or "decode,encode,h5cache,h5cache-folder,torch,gzip"
    with work_folder(args.work) as root:
        run_all(args, root)


def run_all(args: argparse.Namespace, root: Path) -> None:
    prepare_source(args.images, root, args.count)
    source = root / "source"
    chosen = args.only.split(",") if args.only else list(CONTESTANTS)
    pythons = {}
    for key in chosen:
        needs = CONTESTANTS[key].needs
        candidates = [sys.executable] + ([args.peers_python] if args.peers_python else [])
        found = [python for python in candidates if not needs or can_import(python, needs)]
        if found:
            pythons[key] = found[0]
        else:
            print(f"{CONTESTANTS[key].name}: not installed, left out")
    results = {
        key: Result(key, CONTESTANTS[key].name, CONTESTANTS[key].kind, args.count) for key in chosen if key in pythons
    }
    print(f"{args.count:,} pictures, {args.workers} processes, {args.rounds} rounds")
    for _ in range(args.rounds):
        for key, result in results.items():
            out = root / ("out-folder" if key.endswith("folder") else "out")
            run_contestant(key, pythons[key], source, out, args.workers, result)
    print(format_results(list(results.values())))
    print(format_goals(list(results.values())))
    memory = {}
    if any(key.startswith("h5cache") for key in results):
        for count in (int(text) for text in args.memory.split(",") if text):
            place = root / f"memory-{count}"
            place.mkdir()
            prepare_source(source, place, count)
            memory[count] = peak_worker_mb(place / "source", root / "out.h5", args.workers)
            print(f"peak memory of a worker, {count:,} samples: {memory[count]:,.0f} MB")
    if args.json:
        shown = [
            {**asdict(result), "rate_included": result.rate_included, "rate_excluded": result.rate_excluded}
            for result in results.values()
        ]
        args.json.write_text(
            json.dumps({"workers": args.workers, "results": shown, "peak_worker_mb": memory}, indent=2)
        )


if __name__ == "__main__":
    main()
