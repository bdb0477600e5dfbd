"""Killed at any moment, told to stop, out of room, started twice: never a broken dataset, never work done twice.

Real processes and real signals. 25 kills by default; the long form, 200 kills, is

    python -m pytest -m slow tests/convert/test_resume_kills.py
"""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from convert_samples import command, digest, leftovers, make_pictures, run_command, small

from h5cache.errors import H5CacheError
from h5cache.format.open import open_dataset

COUNT = 160
#: Slow enough that a kill finds parts in all states.
SLOW = "import time\n\n\ndef slowly(sample):\n    time.sleep(0.002)\n    return sample\n"


class Place:
    """A source, a slow transform, and what an undisturbed run makes of them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.source = root / "source"
        make_pictures(self.source, COUNT)
        (root / "slow.py").write_text(SLOW)
        self.digests: dict[str, str] = {}
        self.took_s = 0.0
        for name in ("reference.h5", "reference"):
            started = time.monotonic()
            done = subprocess.run(self.command(root / name), cwd=root, check=True, timeout=60, capture_output=True)
            assert done.returncode == 0
            self.took_s = time.monotonic() - started
            self.digests[Path(name).suffix] = digest(root / name)

    def command(self, out: Path, *options: object) -> list[str]:
        sizes = () if out.suffix else ("--shard-size", 16)
        return command(self.source, out, "--workers", 2, "--transform", "slow:slowly", *sizes, *options)

    def start(self, out: Path, *options: object, **popen: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(out, *options),
            cwd=self.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **popen,  # type: ignore[call-overload]
        )

    def resume(self, out: Path) -> int:
        """Run the same conversion again, to its end, in this process; return how many samples it converted."""
        sys.path.insert(0, str(self.root))
        try:
            result = small(self.source, out, transform="slow:slowly")
        finally:
            sys.path.remove(str(self.root))
        assert digest(out) == self.digests[out.suffix]
        assert leftovers(out) == []
        return result.num_converted


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("kills"))


@pytest.fixture
def out(place: Place, tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "out.h5"
    assert not [line for line in processes().values() if str(tmp_path) in line]


def processes() -> dict[int, str]:
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                found[int(name)] = Path(f"/proc/{name}/cmdline").read_text().replace("\0", " ")
            except OSError:
                continue
    return found


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def workers_of(pid: int) -> list[int]:
    """Return loky's workers; its resource tracker is a child too."""
    known = processes()
    return [child for child in children(pid) if "popen_loky" in known.get(child, "")]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until_gone(pids: list[int], timeout_s: float = 5.0) -> None:
    deadline = time.monotonic() + timeout_s
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < deadline, f"still running: {pids}"
        time.sleep(0.02)


def finished_parts(out: Path) -> int:
    folder = out.with_name(out.name + ".parts") if out.suffix else out
    return len([path for path in folder.glob("*.h5") if path.name != "manifest.h5"]) if folder.exists() else 0


def check_absent_or_complete(out: Path, place: Place) -> bool:
    """Return whether OUT is published; if so it is complete."""
    try:
        info = open_dataset(out)
    except FileNotFoundError:
        return False
    assert info.num_samples == COUNT
    if out.suffix:
        assert digest(out) == place.digests[".h5"]
    return True


def kill_and_resume(place: Place, out: Path, victim: str, rng: random.Random) -> int:
    """Kill the parent or a worker at some moment; check, resume, check. Return the parts that were saved."""
    process = place.start(out)
    wait_for_a_moment(place, process, out, rng)
    offspring = children(process.pid)
    if victim == "parent":
        process.kill()
    else:
        for worker in workers_of(process.pid)[:1]:
            try:
                os.kill(worker, signal.SIGKILL)
            except ProcessLookupError:
                pass
    stderr = process.communicate(timeout=30)[1]
    if victim == "worker" and process.returncode:
        assert process.returncode == 1, stderr
        assert "a worker process was killed" in stderr
        assert "Traceback" not in stderr
    wait_until_gone(offspring)
    if check_absent_or_complete(out, place):
        return 0
    saved = finished_parts(out)
    converted = place.resume(out)
    assert converted <= COUNT - 16 * min(saved, COUNT // 16)
    return saved


def wait_for_a_moment(place: Place, process: subprocess.Popen[str], out: Path, rng: random.Random) -> None:
    """Wait for any time from start to end (one in three), or until some parts are finished."""
    if rng.random() < 1 / 3:
        time.sleep(rng.uniform(0, place.took_s))
        return
    count = rng.randrange(0, COUNT // 16)
    while process.poll() is None and finished_parts(out) < count:
        time.sleep(0.001)
    time.sleep(rng.uniform(0, 0.05))


def check_kills(place: Place, tmp_path: Path, victim: str, count: int, seed: int) -> None:
    rng = random.Random(seed)
    saved = 0
    for number in range(count):
        folder = tmp_path / str(number)
        folder.mkdir()
        out = folder / ("out.h5" if number % 3 else "out")
        saved += kill_and_resume(place, out, victim, rng)
    assert saved  # some parts were finished when the kill came, and were not converted again


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("victim", "count"), [("parent", 13), ("worker", 12)])
def test_conversion_killed_at_random_moments_is_absent_or_complete_and_resumes(
    place: Place, tmp_path: Path, victim: str, count: int
) -> None:
    check_kills(place, tmp_path, victim, count, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("victim", ["parent", "worker"])
def test_conversion_killed_100_times_is_absent_or_complete_and_resumes(
    place: Place, tmp_path: Path, victim: str
) -> None:
    check_kills(place, tmp_path, victim, 100, seed=2)


def wait_for_parts(process: subprocess.Popen[str], out: Path, count: int) -> None:
    deadline = time.monotonic() + 30
    while finished_parts(out) < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_conversion_told_to_stop_keeps_its_parts_and_says_how_to_go_on(
    place: Place, out: Path, number: signal.Signals, code: int, workers: int
) -> None:
    process = place.start(out, "--workers", workers, start_new_session=True)
    wait_for_parts(process, out, 2)
    offspring = children(process.pid)
    # As a terminal does it: to the whole group.
    os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
    started = time.monotonic()
    stdout, stderr = process.communicate(timeout=20)
    assert time.monotonic() - started < 5
    assert (process.returncode, stdout) == (code, ""), stderr
    assert "run the same command again" in stderr
    assert "Traceback" not in stderr
    wait_until_gone(offspring)
    parts = out.with_name("out.h5.parts")
    assert os.listdir(out.parent) == ["out.h5.parts"]
    assert all(name == ".h5cache-run.json" or name.endswith(".h5") for name in os.listdir(parts))
    assert not [name for name in os.listdir("/dev/shm") if f"loky-{process.pid}-" in name]
    assert place.resume(out) < COUNT


def session_of(pid: int) -> list[int]:
    """Return the processes of a session that are still running."""
    found = []
    for other in processes():
        try:
            is_own = os.getsid(other) == pid
        except ProcessLookupError:
            continue
        if is_own and is_running(other):
            found.append(other)
    return found


def check_stops(place: Place, tmp_path: Path, moments_s: list[float], presses: int = 1) -> None:
    """Press Ctrl-C so long after the start: whatever is being imported, started or written then, it ends quietly."""
    for number, moment_s in enumerate(moments_s):
        out = tmp_path / str(number) / "out.h5"
        out.parent.mkdir()
        process = place.start(out, start_new_session=True)
        time.sleep(moment_s)
        for _ in range(presses):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
            time.sleep(0.08 if presses > 1 else 0)
        stdout, stderr = process.communicate(timeout=30)
        if process.returncode == 0:  # it was done by then
            assert (stderr, out.exists()) == ("", True)
        else:
            where = f"after {moment_s:.3f} s: {stderr}"
            assert (process.returncode, stdout) == (130, ""), where
            assert len(stderr.strip().splitlines()) == 1, where
            assert "run the same command again" in stderr, where
        wait_until_gone(session_of(process.pid))


#: From just after Python itself has started, past the start of the workers, to their first parts.
FIRST_S, LAST_S = 0.1, 2.0


@pytest.mark.timeout(120)
def test_ctrl_c_while_workers_start_is_one_line_and_leaves_no_process(place: Place, tmp_path: Path) -> None:
    check_stops(place, tmp_path, [FIRST_S + number * 0.08 for number in range(14)])


@pytest.mark.timeout(120)
def test_ctrl_c_pressed_twice_is_one_line_and_leaves_no_process(place: Place, tmp_path: Path) -> None:
    check_stops(place, tmp_path, [0.15, 0.4, 0.6, 0.8, 1.0], presses=2)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ctrl_c_at_100_moments_is_one_line_and_leaves_no_process(place: Place, tmp_path: Path) -> None:
    check_stops(place, tmp_path, [FIRST_S + number * (LAST_S - FIRST_S) / 99 for number in range(100)])


def test_sigterm_to_all_processes_is_a_stop_not_a_lost_worker(place: Place, tmp_path: Path) -> None:
    for number in range(8):  # which is noticed first, the signal or the end of the workers, is a matter of chance
        out = tmp_path / str(number) / "out.h5"
        out.parent.mkdir()
        process = place.start(out, start_new_session=True)
        wait_for_parts(process, out, 2)
        os.killpg(process.pid, signal.SIGTERM)
        stderr = process.communicate(timeout=20)[1]
        assert process.returncode == 143, stderr
        assert "run the same command again" in stderr
        assert len(stderr.strip().splitlines()) == 1
        wait_until_gone(session_of(process.pid))


def test_conversion_stopped_before_its_first_part_leaves_nothing(place: Place, out: Path) -> None:
    process = place.start(out)
    while not leftovers(out):
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 130
    assert finished_parts(out) or leftovers(out) == []


def test_full_disk_is_one_clear_error_and_keeps_the_finished_parts(place: Place, out: Path) -> None:
    reference = (place.root / "reference.h5").stat().st_size
    # Room for parts, not for the result, which is joined from them.
    limit = reference // 2
    process = place.start(out, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
    stderr = process.communicate(timeout=30)[1]
    assert process.returncode == 1
    assert "File too large" in stderr
    assert "Traceback" not in stderr
    assert len(stderr.strip().splitlines()) == 1
    assert not out.exists()
    assert finished_parts(out) > 0
    assert place.resume(out) < COUNT


def test_full_disk_in_the_middle_of_a_part_leaves_no_part(place: Place, out: Path) -> None:
    limit = 20_000  # less than a part
    process = place.start(out, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
    stderr = process.communicate(timeout=30)[1]
    assert process.returncode == 1
    assert "File too large" in stderr
    assert "Traceback" not in stderr
    assert leftovers(out) == []
    assert place.resume(out) == COUNT


def test_second_converter_of_the_same_output_says_so_at_once_and_stops(place: Place, out: Path) -> None:
    first = place.start(out)
    wait_for_parts(first, out, 1)
    started = time.monotonic()
    second = run_command(place.source, out, "--workers", 2)
    took = time.monotonic() - started
    assert second.returncode == 2
    assert "another process is writing this dataset" in second.stderr
    assert len(second.stderr.strip().splitlines()) == 1
    assert took < place.took_s + 2
    first.communicate(timeout=30)
    assert first.returncode == 0
    assert digest(out) == place.digests[".h5"]


def test_kill_after_the_conversion_is_found_finished(place: Place, tmp_path: Path) -> None:
    small(place.source, tmp_path / "out")
    with pytest.raises(H5CacheError, match="exists already"):
        small(place.source, tmp_path / "out")


def test_worker_that_dies_when_all_is_done_does_not_keep_the_parent_waiting(pictures: Path, tmp_path: Path) -> None:
    # One idle worker waits for a task with the queue's lock in its hands, the other for the lock. The first is killed
    # after the last result came: nobody would give the second the lock, or tell it to end.
    script = """
        import os, signal, sys, time
        import loky.process_executor as executor
        from h5cache import convert_dataset

        shutdown_workers = executor._ExecutorManagerThread.shutdown_workers

        def kill_one_first(self):
            time.sleep(0.3)
            for pid in list(self.processes):
                with open(f"/proc/{pid}/wchan") as waiting:
                    if not waiting.read().startswith("futex"):
                        os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)
            shutdown_workers(self)

        executor._ExecutorManagerThread.shutdown_workers = kill_one_first
        print(convert_dataset(sys.argv[1], sys.argv[2], resize=36, size=32, workers=2, part_samples=16).num_samples)
    """
    program = [sys.executable, "-c", textwrap.dedent(script), str(pictures), str(tmp_path / "out.h5")]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "100"), done.stderr
