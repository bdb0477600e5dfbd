"""The command that makes a dataset of tensor files: tried on some of them before it is told."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from h5cache.convert.sources import Source, SourceError, make_source
from h5cache.convert.sources.naming import name_fields
from h5cache.convert.sources.recognise import recognise
from h5cache.errors import H5CacheError
from h5cache.tools.doctor_trial import TRIAL_NBYTES, TRIAL_SAMPLES, Trial, try_samples, try_source
from h5cache.tools.tensor_files import FileLook

__all__ = ["Cure", "plan_cure"]

#: Up to so many folders get a command each.
MANY_FOLDERS = 5

MODEL = "they look like weights of a model, not like samples to train from. Keep them as they are, or as safetensors"
MISMATCH = "its folder is number"


@dataclass(frozen=True)
class Cure:
    """What to run; no commands where h5cache cannot take the files as they are, and `reason` says why."""

    commands: tuple[str, ...]
    notes: tuple[str, ...]
    trial: Trial | None
    reason: str = ""


def plan_cure(path: str, looks: Sequence[FileLook], num_files: int) -> Cure:
    """Find the command that converts these files, trying it on some samples."""
    is_folder = os.path.isdir(path)
    if is_folder and all(look.path.lower().endswith(".npz") for look in looks):
        return _cure_npz(path, looks, num_files)
    if is_folder and _hold_batches(looks):
        return _cure_batches(path, looks, num_files)
    options: list[str] = []
    try:
        source = _open(path, options)
        trial, bad = try_source(source, is_folder)
    except (H5CacheError, OSError) as exc:
        return Cure((), (), None, MODEL if _is_model(looks) else str(exc))
    if is_folder and any(MISMATCH in reason for reason in bad):
        return _cure_folders(path, source)
    if trial is None and _is_model(looks):
        return Cure((), (), None, MODEL)
    if trial is None:
        return Cure((), (), None, bad[0] if bad else "there are no samples")
    notes = []
    if bad or any(look.trouble in ("objects", "damaged") for look in looks):
        options += ["--on-error", "skip"]
        notes.append("--on-error skip leaves out, and lists, the files that cannot be read or do not fit the others")
    if is_folder and len(source) < num_files:
        notes.append(f"it takes {len(source):,} of the {num_files:,} files: those in class folders, and no .npz")
    return Cure((_command(path, options),), tuple(notes), trial)


def _open(path: str, options: list[str]) -> Source:
    kind: str | None = None
    try:
        kind = recognise(path)
    except SourceError:
        # Pictures lie beside the tensors, or tensors both in the folder and in its folders.
        if not os.path.isdir(path):
            raise
    if os.path.isdir(path) and kind != "pt-files":
        kind = "pt-files"
        options += ["--source", kind]
    source = make_source(path, kind)
    if not isinstance(source, Source):
        raise SourceError(f"{path}: is not a set of tensor files")
    return source


def _is_model(looks: Sequence[FileLook]) -> bool:
    return any(array.name.endswith((".weight", ".bias")) for look in looks for array in look.arrays)


def _hold_batches(looks: Sequence[FileLook]) -> bool:
    good = [look for look in looks if look.arrays]
    return bool(good) and all(look.is_batch for look in good)


def _cure_npz(path: str, looks: Sequence[FileLook], num_files: int) -> Cure:
    samples, bad = [], []
    for look in looks[:TRIAL_SAMPLES]:
        if look.trouble:
            bad.append(look.reason)
            continue
        with np.load(look.path, allow_pickle=False) as loaded:
            samples.append(name_fields({name: loaded[name] for name in loaded.files}))
        if sum(one.array_nbytes for one in looks[: len(samples)]) > TRIAL_NBYTES:
            break
    script = (
        "import numpy, pathlib, h5cache; "
        f'files = sorted(pathlib.Path({json.dumps(path)}).rglob("*.npz")); '
        f"h5cache.convert_dataset((dict(numpy.load(file)) for file in files), {json.dumps(_out(path))})"
    )
    note = "h5cache.convert takes one .npz of rows, but not a folder of them: this one line does"
    trial = try_samples(samples, num_files, bad, num_files)
    return Cure((f"python -c {shlex.quote(script)}",), (note,), trial)


def _cure_batches(path: str, looks: Sequence[FileLook], num_files: int) -> Cure:
    good = [look for look in looks if look.arrays and look.path.lower().endswith((".pt", ".pth"))]
    if len(good) < len([look for look in looks if look.arrays]):
        reason = "the .npy files hold batches: join them to one array (np.concatenate) and convert that"
        return Cure((), (), None, reason)
    rows = np.mean([look.arrays[0].shape[0] for look in good])
    bad: list[str] = []
    first = _open(good[0].path, [])
    samples = [first.load(number) for number in range(min(len(first), TRIAL_SAMPLES))]
    script = (
        "import pathlib, torch, h5cache; from h5cache.convert.sources import IterableSource; "
        f'files = sorted(pathlib.Path({json.dumps(path)}).rglob("*.pt*")); '
        "batches = (torch.load(file, weights_only=True) for file in files); "
        f"h5cache.convert_dataset(IterableSource(batches, batched=True), {json.dumps(_out(path))})"
    )
    note = "each file holds a batch of samples: this line takes them apart"
    trial = try_samples(samples, round(rows * num_files), bad, num_files)
    return Cure((f"python -c {shlex.quote(script)}",), (note,), trial)


def _cure_folders(path: str, source: Source) -> Cure:
    """Files hold labels of their own, and folders are not classes but splits or portions: a dataset each."""
    folders = source.classes
    if len(folders) > MANY_FOLDERS:
        return Cure((), (), None, f"files hold labels that are not the numbers of their {len(folders)} folders")
    tried = [try_source(_open(os.path.join(path, name), []), True)[0] for name in folders]
    trials = [trial for trial in tried if trial is not None]
    if not trials:
        return Cure((), (), None, "files hold labels that are not the numbers of their folders")
    total = trials[0]
    for other in trials[1:]:
        total = Trial(
            total.num_samples + other.num_samples,
            total.num_tried + other.num_tried,
            total.num_bad + other.num_bad,
            total.raw_nbytes + other.raw_nbytes,
            total.pt_nbytes + other.pt_nbytes,
            total.h5cache_nbytes + other.h5cache_nbytes,
            total.is_exact and other.is_exact,
            total.fields,
        )
    stem = os.path.abspath(path) if os.path.normpath(path) == "." else os.path.normpath(path)
    commands = tuple(_command(os.path.join(path, name), [], f"{stem}-{name}.h5") for name in folders)
    note = "files hold labels of their own, so folders are not taken for classes: a dataset each"
    return Cure(commands, (note,), total)


def _command(path: str, options: Sequence[str], out: str = "") -> str:
    words = ["python", "-m", "h5cache.convert", os.path.normpath(path), out or _out(path), *options]
    return shlex.join(words)


def _out(path: str) -> str:
    """Return a free name beside the files: never in the folder that is read."""
    plain = os.path.normpath(path)
    stem = os.path.splitext(plain)[0] if os.path.isfile(path) else plain
    if os.path.basename(stem) in ("", ".", ".."):
        stem = os.path.abspath(stem)
    out, number = f"{stem}.h5", 2
    while os.path.exists(out):
        out, number = f"{stem}-{number}.h5", number + 1
    return out
