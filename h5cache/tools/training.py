"""A small network that trains for some seconds from any stream of batches, and counts who waits for whom."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from h5cache.tools.measure import Feed

__all__ = ["Trainer", "Training", "make_network", "train_in_turn"]

#: Streams take turns of this length, so that a slow moment of the machine hits all of them.
TURN_S = 0.5
LEARNING_RATE = 3e-3


@dataclass(frozen=True)
class Training:
    """What came of training: speed, waiting, and the loss of every step."""

    samples: int
    seconds: float
    waited_s: float
    losses: tuple[float, ...]

    @property
    def samples_per_s(self) -> float:
        return self.samples / self.seconds if self.seconds > 0 else 0.0

    @property
    def waited_share(self) -> float:
        return self.waited_s / self.seconds if self.seconds > 0 else 0.0

    def loss_curve(self, num_points: int) -> list[float]:
        """Return the loss as means over equal runs of steps."""
        count = min(num_points, len(self.losses))
        bounds = [len(self.losses) * number // count for number in range(count + 1)] if count else []
        return [sum(self.losses[start:stop]) / (stop - start) for start, stop in pairwise(bounds)]


def make_network(num_classes: int, seed: int = 0) -> nn.Module:
    """Return a small convolutional network for pictures of any size, the same for a seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(3, 16, 5, stride=4, padding=2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(64, num_classes),
        )


class Trainer:
    """Trains one network from one stream of (pictures, labels)."""

    def __init__(self, network: nn.Module, feed: Feed, prepare: Callable[[Any], torch.Tensor] | None = None) -> None:
        self._network = network
        self._feed = feed
        self._prepare = prepare or (lambda pictures: pictures)
        self._optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE)
        self._samples = 0
        self._seconds = self._waited_s = 0.0
        self._losses: list[float] = []

    def warm_up(self) -> None:
        """Start threads and workers, and let torch choose its kernels; nothing is learnt or counted."""
        pictures, labels = self._feed.next()
        self._step_back(pictures, labels)
        self._optimizer.zero_grad()

    def train(self, seconds: float) -> None:
        began = now = time.perf_counter()
        while now - began < seconds:
            pictures, labels = self._feed.next()
            self._waited_s += time.perf_counter() - now
            self._optimizer.zero_grad()
            loss = self._step_back(pictures, labels)
            self._optimizer.step()
            self._losses.append(loss)
            self._samples += len(labels)
            now = time.perf_counter()
        self._seconds += now - began

    def _step_back(self, pictures: Any, labels: torch.Tensor) -> float:
        loss = nn.functional.cross_entropy(self._network(self._prepare(pictures)), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    def result(self) -> Training:
        return Training(self._samples, self._seconds, self._waited_s, tuple(self._losses))


def train_in_turn(
    trainers: Sequence[Trainer],
    seconds: float,
    threads: int,
    advance: Callable[[int], Any] = lambda turns: None,
) -> list[Training]:
    """Train each for so many seconds, in turns; `advance(1)` is called after each.

    `threads` are those of the network: where it takes all cores, whoever reads must take them away from it.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for trainer in trainers:
            trainer.warm_up()
        for _ in range(num_turns(seconds)):
            for trainer in trainers:
                trainer.train(seconds / num_turns(seconds))
                advance(1)
    finally:
        torch.set_num_threads(before)
    return [trainer.result() for trainer in trainers]


def num_turns(seconds: float) -> int:
    return max(1, round(seconds / TURN_S))
