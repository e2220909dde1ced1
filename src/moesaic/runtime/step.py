"""One step of the model as decoders see it: spans around their own work, and the sparse part handed to the runner."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from moesaic.core.model import ModelSpec
from moesaic.core.ops import Op
from moesaic.core.timeline import Timeline
from moesaic.cost.footprint import StepWork
from moesaic.kernels.api import Routing
from moesaic.runtime.executor import LaneExecutor
from moesaic.runtime.experts import ExpertRunner
from moesaic.schedules.lower import DEVICE_COMPUTE


class Run:
    """Implements models.base.StepRun, and the begin and end of a step that the engine calls."""

    def __init__(
        self,
        spec: ModelSpec,
        itemsize: int,
        executor: LaneExecutor,
        experts: ExpertRunner,
        observers: Sequence[Callable[[Timeline], None]] = (),
    ) -> None:
        self.spec = spec
        self.itemsize = itemsize
        self.executor = executor
        self.runner = experts
        self._observers = observers  # each sees every timeline once: meter, trace writer
        self._work = StepWork(spec, itemsize, 0, 0, 0)
        self._last = 0

    def begin_step(self, num_tokens: int, context_tokens: int, num_logits: int) -> None:
        """`num_tokens` run through the model over `context_tokens` cached tokens in all, this step's included."""
        self._work = StepWork(self.spec, self.itemsize, num_tokens, context_tokens, num_logits)
        self.runner.step += 1
        self.runner.tap.begin_step(num_tokens)

    @contextmanager
    def op(self, name: str) -> Iterator[None]:
        with self.executor.span(Op(name, DEVICE_COMPUTE, self._work.of(name))) as self._last:
            yield

    def experts(self, layer: int, x_TH: Tensor, routing: Routing) -> Tensor:
        return self.runner.run(layer, x_TH, routing, self._last)

    def end_step(self) -> Timeline:
        """The spans that have ended; background copies may go on."""
        return self._observed(self.executor.collect())

    def drain(self) -> Timeline:
        """Waits for everything, background copies too."""
        return self._observed(self.executor.drain())

    def _observed(self, timeline: Timeline) -> Timeline:
        for observe in self._observers:
            observe(timeline)
        return timeline

    def reset(self) -> None:
        """After a failed step: nothing of it may still run when its blocks are given to others."""
        if self.executor.device.type == "cuda":
            torch.cuda.synchronize(self.executor.device)
