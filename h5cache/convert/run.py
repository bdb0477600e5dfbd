"""Run a conversion: lock, find what is finished, convert the rest, publish. Survives being killed at any moment."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack

from h5cache.convert.decide import FirstSamples, load_first
from h5cache.convert.executor import WorkerLostError, open_pool
from h5cache.convert.finish import EarlyJoin, find_conflict, publish_job
from h5cache.convert.guard import claim_tasks
from h5cache.convert.job import FinishedPart, Job, Target, make_index, open_job, remove_leftovers
from h5cache.convert.options import ConvertOptions
from h5cache.convert.plan import plan_output
from h5cache.convert.problems import BadInputsError, ConversionFailedError, ConversionStopped, NoRoomError
from h5cache.convert.progress import CounterFile, ProgressBar
from h5cache.convert.recipe import Recipe
from h5cache.convert.record import Origin, make_provenance
from h5cache.convert.result import ConvertResult, check_output
from h5cache.convert.sources.source import Source
from h5cache.convert.task import PartResult, PartTask
from h5cache.deal import plan_order, plan_splits
from h5cache.errors import FormatError, H5CacheError, MissingDatasetError, SchemaError
from h5cache.format.open import open_dataset
from h5cache.format.parts import is_file_output
from h5cache.format.publish import check_parent, lock_output
from h5cache.terminal import format_nbytes

__all__ = ["check_outputs", "convert_source", "plan_targets"]

log = logging.getLogger(__name__)

Submit = Callable[[PartTask], Future[PartResult]]

#: How often progress is shown and signals are noticed.
POLL_S = 0.2
#: Room left for tables, index and what the first samples did not tell.
ROOM_MARGIN = 1.02


def plan_targets(source: Source, out: str, options: ConvertOptions) -> list[Target]:
    """Return the datasets to be made, with every sample in exactly one."""
    if len(source) == 0:
        raise SchemaError("the source has no samples; there is nothing to convert")
    output = os.path.abspath(out)
    files = source.files
    if options.split is None:
        order = plan_order(len(source), options.seed, options.shuffle)
        return [Target(None, output, order, make_index(files, order))]
    dealt = plan_splits(len(source), source.labels, options.split, options.seed, options.shuffle)
    return [
        Target(split, plan_output(output, split), samples, make_index(files, samples))
        for split, samples in dealt.items()
    ]


def check_outputs(out: str, options: ConvertOptions) -> None:
    """Raise, before the source is even listed, where an output exists, is being written, or cannot be written."""
    splits: Sequence[str | None] = [None] if options.split is None else list(options.split)
    for split in splits:
        output = plan_output(os.path.abspath(out), split)
        if split is not None and not os.path.isdir(os.path.dirname(output)):
            continue  # the folder of splits is made later
        check_parent(output)
        with lock_output(output):
            remove_leftovers(output)
        # A split may have been published by this very conversion before it was killed among the others.
        check_output(output, options.overwrite or split is not None)


def convert_source(
    source: Source,
    out: str,
    recipe: Recipe,
    options: ConvertOptions,
    workers: int,
    executor: Executor | None = None,
    check_stop: Callable[[], None] | None = None,
) -> ConvertResult:
    """Convert all samples and publish; see `convert_dataset`."""
    targets = plan_targets(source, out, options)
    if options.split is not None and not is_file_output(os.path.abspath(out)):
        check_parent(os.path.abspath(out))
        os.makedirs(out, exist_ok=True)
    with ExitStack() as locks:
        for target in targets:
            check_output(target.output, options.overwrite or len(targets) > 1)
            locks.enter_context(lock_output(target.output))
        origin = Origin.of(source, recipe)
        pending = [target for target in targets if not _is_published(target, origin, options, len(targets))]
        for target in pending:
            check_output(target.output, options.overwrite)
        run = _Run(source, recipe, origin, options, pending, check_stop or (lambda: None))
        try:
            done = run.convert(workers, executor)
        except KeyboardInterrupt as exc:
            raise ConversionStopped(f"stopped; {run.tidy_up()}") from exc
        except (WorkerLostError, OSError) as exc:
            if isinstance(exc, H5CacheError) and not isinstance(exc, WorkerLostError):
                run.tidy_up()
                raise
            raise ConversionFailedError(f"{_reason(exc)}; {run.tidy_up()}") from exc
        except BaseException:
            run.tidy_up()
            raise
        finally:
            run.close()
    finished = [open_dataset(target.output) for target in targets if target not in pending]
    return ConvertResult(
        tuple(target.output for target in targets),
        done.num_samples + sum(info.num_samples for info in finished),
        done.nbytes + sum(shard.identity.nbytes for info in finished for shard in info.shards),
        done.skipped,
        done.num_converted,
    )


def _reason(exc: Exception) -> str:
    if isinstance(exc, OSError) and exc.strerror and exc.filename:
        return f"{exc.filename}: {exc.strerror}"
    return str(exc)


def _is_published(target: Target, origin: Origin, options: ConvertOptions, num_targets: int) -> bool:
    """True for a split that this very conversion published before it was killed among the others."""
    if num_targets == 1:
        return False
    try:
        provenance = dict(open_dataset(target.output).provenance)
    except (MissingDatasetError, FormatError):
        return False
    provenance.pop("skipped", None)
    return provenance == make_provenance(origin, options, target.split)


class _Run:
    """The state of one conversion while it runs: which parts are finished, and what was bad in them."""

    def __init__(
        self,
        source: Source,
        recipe: Recipe,
        origin: Origin,
        options: ConvertOptions,
        targets: Sequence[Target],
        check_stop: Callable[[], None],
    ) -> None:
        self._source = source
        self._recipe = recipe
        self._origin = origin
        self._options = options
        self._targets = targets
        self._check_stop = check_stop
        self._first: FirstSamples | None = None
        self._jobs: list[Job] = []
        self._early: list[EarlyJoin] = []
        self._finished: list[dict[int, FinishedPart]] = []
        self._num_converted = 0

    def convert(self, workers: int, executor: Executor | None) -> ConvertResult:
        as_floats: tuple[str, ...] = ()
        with ExitStack() as pools:
            submit: Submit | None = None
            depth = 0
            while True:
                self._check_stop()
                self._open_jobs(as_floats)
                self._check_stop()
                conflict = None
                if any(self._missing(job, done) for job, done in zip(self._jobs, self._finished, strict=True)):
                    if submit is None:
                        missing = sum(len(self._missing(*one)) for one in zip(self._jobs, self._finished, strict=True))
                        pool = pools.enter_context(open_pool(min(workers, missing), executor))
                        submit, depth = pool.submit, pool.depth
                    conflict = self._convert_or_stop(submit, depth)
                conflict = conflict or next(filter(None, map(find_conflict, self._jobs)), None)
                self._check_stop()
                if conflict is None:
                    break
                log.info("field %r: exact codes do not hold for all samples; it is stored as floats", conflict)
                as_floats = tuple(sorted({*as_floats, conflict}))
        return self._publish()

    def tidy_up(self) -> str:
        """Remove what is unfinished; say what is kept."""
        self.close()
        kept = total = 0
        homes = []
        for job in self._jobs:
            job.clear_unfinished()
            number = sum(os.path.exists(job.parts.part_path(part.number)) for part in job.plan.parts)
            kept, total = kept + number, total + job.plan.num_parts
            homes += [job.parts.home] if number else []
        if not kept:
            return "nothing is left behind; run the same command again to start anew"
        return (
            f"{kept} of {total} parts are finished and kept in {', '.join(homes)}; "
            "run the same command again to go on with them"
        )

    def close(self) -> None:
        for early in self._early:
            early.close()

    def _open_jobs(self, as_floats: tuple[str, ...]) -> None:
        self.close()
        self._early, self._finished = [], []
        self._jobs = jobs = []
        for target in self._targets:
            jobs.append(
                open_job(target, self._source, self._recipe, self._origin, self._options, self._load_first, as_floats)
            )
        for job in jobs:
            job.parts.clear_unfinished()
            found = job.read_finished()
            self._finished.append({number: part for number, part in found.items() if part is not None})
            self._early.append(EarlyJoin(job))
            if found:
                log.info("%s: %d of %d parts are finished already", job.plan.output, len(found), job.plan.num_parts)
        self._check_room()

    def _load_first(self) -> FirstSamples:
        if self._first is None:
            order = plan_order(len(self._source), self._options.seed, self._options.shuffle)
            self._first = load_first(self._source, self._recipe, order)
        return self._first

    def _missing(self, job: Job, done: Mapping[int, FinishedPart]) -> list[int]:
        return [part.number for part in job.plan.parts if part.number not in done]

    def _check_room(self) -> None:
        needed: dict[str, float] = {}
        for job, done in zip(self._jobs, self._finished, strict=True):
            folder = os.path.dirname(job.plan.output)
            missing = job.plan.num_samples - sum(part.num_samples for part in done.values())
            copies = missing + (job.plan.num_samples if is_file_output(job.plan.output) else 0)
            needed[folder] = needed.get(folder, 0.0) + copies * job.record.decision.stored_nbytes * ROOM_MARGIN
        for folder, nbytes in needed.items():
            free = shutil.disk_usage(folder).free
            if nbytes > free and not self._options.force:
                raise NoRoomError(
                    f"{folder}: the conversion needs about {format_nbytes(nbytes)} (a file needs its size twice, parts "
                    f"and result; a folder once), the disk has {format_nbytes(free)} left; force=True (--force) goes on"
                )

    def _convert_or_stop(self, submit: Submit, depth: int) -> str | None:
        try:
            return self._convert_parts(submit, depth)
        except BrokenProcessPool:
            self._check_stop()  # a SIGTERM to all processes of a group, as batch systems send it, ends the workers too
            raise

    def _convert_parts(self, submit: Submit, depth: int) -> str | None:
        """Convert all missing parts; return early with the name of a field whose exact codes do not hold."""
        owner = secrets.token_hex(4)
        counters = []
        for job in self._jobs:
            claim_tasks(job.lock_path, owner)
            counters.append(CounterFile.create(job.counters.path, job.plan.num_parts))
        done_before = sum(part.num_samples + len(part.bad) for done in self._finished for part in done.values())
        nbytes_before = self._stored_nbytes()
        total = sum(job.plan.num_samples for job in self._jobs)
        bar = ProgressBar(total, done_before, self._jobs[0].record.decision.sample_nbytes, self._options.progress)
        tasks = self._iter_tasks(owner)
        running: dict[Future[PartResult], int] = {}
        try:
            while True:
                while len(running) < depth and (entry := next(tasks, None)) is not None:
                    job_number, task = entry
                    running[submit(task)] = job_number
                if not running:
                    # Parts that were written anew from themselves have counted nothing.
                    bar.set(total, self._stored_nbytes())
                    bar.finish()
                    return None
                ready, _ = wait(running, timeout=POLL_S, return_when=FIRST_COMPLETED)
                for future in ready:
                    job_number, result = running.pop(future), future.result()
                    if result.conflict is not None:
                        wait(running)  # others finish their parts, to be replayed
                        bar.drop()
                        return result.conflict
                    self._num_converted += result.num_samples
                    self._finished[job_number][result.number] = FinishedPart(
                        result.number, result.num_samples, result.nbytes, result.bad
                    )
                self._join_early()
                samples, nbytes = (sum(column) for column in zip(*(file.total() for file in counters), strict=True))
                bar.set(done_before + samples, nbytes_before + nbytes)
                self._check_stop()
        finally:
            bar.close()

    def _stored_nbytes(self) -> int:
        return sum(part.nbytes for done in self._finished for part in done.values())

    def _join_early(self) -> None:
        """Copy finished parts into their results, for a while: a resumed run may find a thousand of them."""
        until = time.monotonic() + POLL_S
        for early, done in zip(self._early, self._finished, strict=True):
            holes = {part.number: bool(part.bad) for part in done.values()}
            while early.advance(holes) and time.monotonic() < until:
                pass

    def _iter_tasks(self, owner: str) -> Iterator[tuple[int, PartTask]]:
        for number, (job, done) in enumerate(zip(self._jobs, self._finished, strict=True)):
            for missing in self._missing(job, done):
                replayed = os.path.exists(job.parts.part_path(missing))
                yield number, job.make_task(job.plan.parts[missing], owner, replayed)

    def _publish(self) -> ConvertResult:
        bad = [one for done in self._finished for _, part in sorted(done.items()) for one in part.bad]
        total = sum(job.plan.num_samples for job in self._jobs)
        nothing_left = any(not any(part.num_samples for part in done.values()) for done in self._finished)
        if bad and (self._options.on_error == "report" or nothing_left):
            for job in self._jobs:
                job.clear_unfinished()
            raise BadInputsError(bad, total, ", ".join(job.plan.output for job in self._jobs))
        nbytes = 0
        for job, early, done in zip(self._jobs, self._early, self._finished, strict=True):
            own = sorted((one for part in done.values() for one in part.bad), key=lambda one: one.place)
            nbytes += publish_job(job, early, own, self._options.overwrite)
        paths = tuple(job.plan.output for job in self._jobs)
        return ConvertResult(paths, total - len(bad), nbytes, tuple(bad), self._num_converted)
