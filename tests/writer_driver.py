"""A loop that writes a dataset, and a process that kills it: for tests of faults. Run as a script."""

from __future__ import annotations

import hashlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import time
import traceback
from typing import Any

import numpy as np

import h5cache.format.writer as writer_module
from h5cache import Field, Writer

NUM_SAMPLES = 75
PART_SAMPLES = 16
STEPS = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree", "open")
FIELDS = {
    "image": Field("uint8", (3, 8, 8), chunk_samples=8),
    "plane": Field("float32", (16, 16), chunk_samples=8),
    "label": Field("int64"),
}

Array = np.ndarray[Any, Any]


def samples(start: int, stop: int, conflict_at: int | None = None) -> dict[str, Any]:
    """Samples by number: a picture, a plane of exact 8-bit levels (but for one from `conflict_at` on), a label."""
    number = np.arange(start, stop)
    grid = np.arange(192, dtype=np.int64)
    image = ((number[:, None] * 7 + grid) % 251).astype(np.uint8).reshape(-1, 3, 8, 8)
    levels = (number[:, None] * 3 + np.arange(256)) % 256
    plane = (levels.astype(np.float32) / np.float32(255)).reshape(-1, 16, 16)
    if conflict_at is not None:
        plane[number >= conflict_at] = np.nextafter(plane[number >= conflict_at], np.float32(9))
    return {"image": image, "plane": plane, "label": number, "key": [f"sample-{i}" for i in number]}


def write(out: str, *, batch: int = 5, conflict_at: int | None = None, num: int = NUM_SAMPLES, **options: Any) -> None:
    writer_module.PART_SAMPLES = PART_SAMPLES
    with Writer(out, FIELDS, classes=("a", "b"), shard_samples=PART_SAMPLES, **options) as w:
        start = w.num_done
        while start < num:
            stop = min(num, start + batch)
            w.append(**samples(start, stop, conflict_at))
            start = stop


def digest(out: str) -> str | None:
    """Identify a published dataset by its bytes; None where there is none."""
    if os.path.isdir(out):
        if not os.path.exists(os.path.join(out, "manifest.h5")):
            return None
        names = sorted(name for name in os.listdir(out) if name.endswith(".h5"))
        paths = [os.path.join(out, name) for name in names]
    elif os.path.exists(out):
        names, paths = ["file"], [out]
    else:
        return None
    found = hashlib.sha256(repr(names).encode())
    for path in paths:
        with open(path, "rb") as stream:
            found.update(stream.read())
    return found.hexdigest()


def in_child(out: str, kill_at_step: int | None = None, kill_after_s: float | None = None, **options: Any) -> int:
    """Write in a forked process that is killed before its n-th step on the disk, or after some time; return status."""
    pid = os.fork()
    if pid == 0:
        status = 3
        try:
            if kill_at_step is not None:
                _kill_self_at(kill_at_step, os.path.dirname(out))
            write(out, **options)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    if kill_after_s is not None:
        time.sleep(kill_after_s)
        os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _kill_self_at(step: int, folder: str) -> None:
    left = step

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal left
        if event in STEPS and args and folder in os.fsdecode(args[0] if isinstance(args[0], str | bytes) else b""):
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1

    sys.addaudithook(hook)


def attack(out: str, how: str, count: int, conflict_at: int | None, overwrite: bool, stride: int = 1) -> dict[str, Any]:
    """Kill writers of `out` and resume them; return how often they were killed and what was not right."""
    folder = os.path.dirname(out)
    options = {"conflict_at": conflict_at, "resume": True, "overwrite": overwrite}
    began = time.perf_counter()
    if in_child(out, **options) != 0:
        return {"kills": 0, "problems": ["the undisturbed run failed"]}
    duration = time.perf_counter() - began
    right = digest(out)
    rng = random.Random(count)
    kills, problems = 0, []
    for number in range(0, count, stride):
        shutil.rmtree(folder)
        os.mkdir(folder)
        before = None
        if overwrite:
            write(out, num=20)
            before = digest(out)
        if how == "steps":
            status = in_child(out, kill_at_step=number, **options)
            if status == 0:
                break
            kills += 1
        else:
            for _ in range(3):
                status = in_child(out, kill_after_s=rng.random() * duration, **options)
                kills += status == -signal.SIGKILL
        found = digest(out) if before is None else published(out, conflict_at)
        if before is None and found not in (None, right):
            problems.append(f"{number}: something else was published")
        if before is not None and found not in (20, NUM_SAMPLES):
            problems.append(f"{number}: the old dataset is gone ({found})")
        if overwrite or found is None:
            if in_child(out, **options) != 0:
                problems.append(f"{number}: resuming failed")
            elif published(out, conflict_at) != NUM_SAMPLES or (before is None and digest(out) != right):
                problems.append(f"{number}: the resumed dataset differs")
            elif os.listdir(folder) != [os.path.basename(out)]:
                problems.append(f"{number}: left behind {os.listdir(folder)}")
            elif os.path.isdir(out) and any(name.startswith(".") or "partial" in name for name in os.listdir(out)):
                problems.append(f"{number}: left behind {os.listdir(out)}")
    return {"kills": kills, "problems": problems}


def published(out: str, conflict_at: int | None = None) -> int | str:
    """Read every sample of a dataset and return how many are right, or what is wrong."""
    from h5cache import H5TensorDataset

    try:
        with H5TensorDataset(out, verify="always") as ds:
            expected = samples(0, len(ds), conflict_at)
            found = dict(zip(ds.fields, ds[:], strict=True), key=ds.index["key"])
            wrong = [
                name for name, rows in expected.items() if np.asarray(found[name]).tolist() != np.asarray(rows).tolist()
            ]
            return f"wrong {wrong}" if wrong else len(ds)
    except (OSError, ValueError) as exc:
        return repr(exc)


def hold(out: str) -> None:
    with Writer(out, FIELDS, resume=True) as w:
        w.append(**samples(0, 3))
        print("ready", flush=True)
        sys.stdin.readline()


def limited(out: str, nbytes: int, resume: bool) -> None:
    """Write with a limit on the size of files, as if the disk were full, and say what happened."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    if nbytes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, nbytes))
    full(out, resume)


def full(out: str, resume: bool) -> None:
    rng = np.random.default_rng(0)
    writer_module.PART_SAMPLES = PART_SAMPLES
    try:
        with Writer(out, {"x": Field("uint8", (4096,), chunk_samples=8)}, resume=resume) as w:
            for number in range(20):
                rows = rng.integers(0, 256, (16, 4096), np.uint8)
                if number * 16 >= w.num_done:
                    w.append(x=rows)
    except OSError as exc:
        print(type(exc).__name__, exc)
    else:
        print("published")


def main() -> None:
    command, out, *rest = sys.argv[1:]
    if command == "attack":
        options = json.loads(rest[0])
        print(json.dumps(attack(out, **options)))
    elif command == "hold":
        hold(out)
    elif command == "limited":
        limited(out, int(rest[0]), rest[1] == "resume")
    elif command == "full":
        full(out, rest[0] == "resume")


if __name__ == "__main__":
    main()
