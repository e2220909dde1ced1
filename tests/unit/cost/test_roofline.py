"""Seconds of an op: the longer roof binds, and readers of one host memory share it."""

import pytest

from moesaic.core.ops import Compute, Copy, Exchange, Op
from moesaic.core.places import DEVICE, HOST, HardwareProfile, Lane, LinkSpec, Place, Space, TierSpec
from moesaic.cost.roofline import RooflineCost

MACHINE = HardwareProfile(
    "test",
    {HOST: TierSpec(0, 100e9, 2e12, shared_bandwidth_bytes_s=110e9), DEVICE: TierSpec(0, 4e12, 800e12)},
    {(HOST, DEVICE): LinkSpec(50e9, 1e-5), (Place(Space.DEVICE, 0), Place(Space.DEVICE, 1)): LinkSpec(300e9, 4e-5),
     (Place(Space.DEVICE, 1), Place(Space.DEVICE, 0)): LinkSpec(150e9, 4e-5)},
)  # fmt: skip
COST = RooflineCost(MACHINE)
HOST_COMPUTE, LOAD = Lane(HOST, "compute"), Lane(DEVICE, "load")


def test_compute_takes_the_longer_of_flops_and_bytes():
    assert COST.seconds(Op("a", HOST_COMPUTE, Compute(2e12, 1e9))) == pytest.approx(1.0)
    assert COST.seconds(Op("a", HOST_COMPUTE, Compute(1e9, 100e9))) == pytest.approx(1.0)


def test_a_copy_takes_latency_and_bytes_over_the_link():
    assert COST.seconds(Op("c", LOAD, Copy(HOST, DEVICE, 50e9))) == pytest.approx(1.00001)


def test_an_exchange_takes_the_slowest_direction():
    peers = (Place(Space.DEVICE, 0), Place(Space.DEVICE, 1))
    assert COST.seconds(Op("x", Lane(DEVICE, "net"), Exchange(peers, 150e9))) == pytest.approx(1.00004)


def test_host_reads_and_link_reads_share_the_host_memory():
    compute = Op("a", HOST_COMPUTE, Compute(0, 100e9))
    copy = Op("c", LOAD, Copy(HOST, DEVICE, 50e9))
    # 100 + 50 GB/s wanted of 110: both stretch by 150/110
    assert COST.seconds(compute, (copy,)) == pytest.approx(150 / 110, rel=1e-4)
    assert COST.seconds(copy, (compute,)) == pytest.approx(1.00001 * 150 / 110, rel=1e-4)
    resident = Op("h", Lane(DEVICE, "compute"), Compute(0, 4e12))
    assert COST.seconds(resident, (compute, copy)) == pytest.approx(1.0)
