"""Copies to a CUDA device on a stream of their own, so that they overlap with training.

Written to torch's documented behaviour; there is no GPU in the tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

__all__ = ["DeviceStream"]


class DeviceStream:
    """Bring batches to a device. `use`, `move` in any thread; `hand_over` in the consumer's."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def use(self) -> AbstractContextManager[Any]:
        """Work inside this on the side stream."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def move(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Begin to copy. Pinned sources may be dropped at once: torch's host allocator waits for the copy."""
        return {name: tensor.to(self.device, non_blocking=True) for name, tensor in tensors.items()}

    def hand_over(self, batch: Any) -> None:
        """Make the caller's stream wait for the side stream, and tell the allocator that it uses the memory."""
        if self._stream is None:
            return
        current = torch.cuda.current_stream(self.device)
        current.wait_stream(self._stream)
        for leaf in tree_leaves(batch):
            if isinstance(leaf, torch.Tensor) and leaf.is_cuda:
                leaf.record_stream(current)
