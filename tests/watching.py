"""Watches an engine's experts while it runs: what every op does to the slots, with each slot poisoned before it is
filled, and faults injected where a test wants them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from moesaic import LLM
from moesaic.core.ops import Schedule
from moesaic.core.routing import ExpertId
from moesaic.core.timeline import Span
from moesaic.runtime import experts
from moesaic.schedules.check import SlotUse, check


@dataclass
class Watch:
    llm: LLM
    spans: list[Span] = field(default_factory=list)
    fills: dict[int, tuple[ExpertId, int]] = field(default_factory=dict)
    reads: dict[int, list[tuple[ExpertId, int]]] = field(default_factory=dict)
    known: list[tuple[int, int]] = field(default_factory=list)  # ops from the first on follow the second: the host saw
    before: Callable[[str], None] = lambda name: None  # may raise: "copy", "device", "host", "x", "y"

    def faults(self) -> list[str]:
        """What schedules.check finds in everything that ran since the watch began."""
        run = self.llm.engine.parts.run
        run.drain()
        spans = sorted(self.spans, key=lambda s: s.index)
        first = spans[0].index
        assert [s.index for s in spans] == list(range(first, first + len(spans))), "spans are missing"
        ops = []
        for span in spans:
            seen = {done for since, done in self.known if since <= span.index and done >= first}
            ops.append(replace(span.op, after=tuple(sorted(seen.union(span.op.after)))))
        return check(Schedule(first, ops), SlotUse(self.fills, self.reads), run.runner.store.num_slots)

    def check_resident(self) -> None:
        """Every resident expert's bytes are the host's."""
        runner = self.llm.engine.parts.run.runner
        runner.store.check_idle()
        for expert, slot in runner.store.resident().items():
            host, device = runner.places.host_pages(expert), runner.places.device_pages(slot, expert.layer)
            ours = runner.places.device_SB[device.start : device.stop].cpu()
            assert torch.equal(ours, runner.places.host_SB[host.start : host.stop]), (
                f"{expert} is not what it should be"
            )


def watch(llm: LLM, monkeypatch) -> Watch:
    """Begins to watch; `monkeypatch` undoes it."""
    seen = Watch(llm)
    run = llm.engine.parts.run
    runner, store, executor = run.runner, run.runner.store, run.executor
    chance = random.Random(0)
    run._observers = (*run._observers, seen.spans.extend)
    places = runner.places

    def is_done(index: int, plain=executor.is_done) -> bool:
        # "not known yet" is always a right answer, and makes the store say what must be waited for
        done = chance.random() < 0.5 and plain(index)
        if done:
            seen.known.append((executor.next_index, index))
        return done

    def wait(index: int, plain=executor.wait) -> None:
        plain(index)
        seen.known.append((executor.next_index, index))

    monkeypatch.setattr(executor, "is_done", is_done)
    monkeypatch.setattr(executor, "wait", wait)

    def copy(expert: ExpertId, plain=runner.copy) -> None:
        seen.before("copy")
        slot = store.slot_of(expert)
        pages = places.device_pages(slot, expert.layer)
        places.device_SB[pages.start : pages.stop] = 0xFF  # NaN in every float format
        seen.fills[executor.next_index - 1] = (expert, slot)
        plain(expert)

    def on_device(work, wanted, plain=experts._LayerWork._on_device) -> None:
        seen.before("device")
        if work.runner is runner:
            seen.reads[executor.next_index - 1] = [(e, store.slot_of(e)) for e in wanted]
        plain(work, wanted)

    def noting(name: str, plain):
        def call(work, *args):
            seen.before(name)
            return plain(work, *args)

        return call

    monkeypatch.setattr(runner, "copy", copy)
    monkeypatch.setattr(experts._LayerWork, "_on_device", on_device)
    for name, attribute in (("host", "_on_host"), ("x", "_x_to_host"), ("y", "_y_to_device")):
        monkeypatch.setattr(experts._LayerWork, attribute, noting(name, getattr(experts._LayerWork, attribute)))
    return seen
