"""What a loader has done: rates and shares of time, for people who wonder who waits for whom."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LoaderStats"]


@dataclass(frozen=True)
class LoaderStats:
    """One epoch, or the part of it that has been delivered.

    Shares of `read_s` and `decode_s` are of the threads' time, `waited_s` is the consumer's.
    """

    samples: int
    batches: int
    elapsed_s: float
    #: How long the consumer waited for batches. Near 0: the loader keeps up with the training step.
    waited_s: float
    nbytes_read: int
    read_s: float
    decode_s: float
    threads: int

    @property
    def samples_per_s(self) -> float:
        return self.samples / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def waited_share(self) -> float:
        return self.waited_s / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def read_share(self) -> float:
        return self._share_of_threads(self.read_s)

    @property
    def decode_share(self) -> float:
        return self._share_of_threads(self.decode_s)

    def _share_of_threads(self, seconds: float) -> float:
        total = self.elapsed_s * max(1, self.threads)
        return seconds / total if total > 0 else 0.0

    def __str__(self) -> str:
        return (
            f"{self.samples:,} samples in {self.elapsed_s:.2f} s ({self.samples_per_s:,.0f}/s, "
            f"{self.nbytes_read / 1e6:,.0f} MB read); waited {self.waited_share:.0%}; "
            f"threads: {self.read_share:.0%} reading, {self.decode_share:.0%} decoding"
        )
