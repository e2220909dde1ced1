"""build: the registry of decoders."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from moesaic.core.errors import UserError
from moesaic.kernels.choose import kernels
from moesaic.models import DECODERS, build
from moesaic.models.tiny import random_config
from moesaic.specs import FAMILIES, read_spec


def test_every_family_that_is_specified_has_a_decoder():
    assert set(DECODERS) == set(FAMILIES)


def test_an_unknown_model_type_is_named_with_the_known_ones():
    spec = dataclasses.replace(read_spec(random_config("mixtral", 0)), model_type="mamba")
    with pytest.raises(UserError, match=r"model_type 'mamba'.*mixtral"):
        build(spec, {}, kernels(torch.device("cpu"), torch.float32))
