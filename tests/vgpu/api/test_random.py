"""Generators of the virtual GPU."""

from __future__ import annotations

import pickle

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint

import ebbtide.vgpu.api.random as ours
from ebbtide.vgpu.virtual_gpu import VirtualGpu


def test_a_cpu_generator_is_pytorchs_own(gpu: VirtualGpu) -> None:
    generator = torch.Generator()
    assert type(generator) is torch._C.Generator
    assert isinstance(generator, torch.Generator)
    first = torch.randn(3, generator=generator.manual_seed(1))
    assert torch.equal(first, torch.randn(3, generator=torch.Generator().manual_seed(1)))


@pytest.mark.parametrize("device", ["cuda", "cuda:0", torch.device("cuda"), 0])
def test_a_cuda_generator_keeps_seed_and_offset(gpu: VirtualGpu, device: object) -> None:
    generator = torch.Generator(device)
    assert generator.device == torch.device("cuda", 0)
    assert generator.manual_seed(7) is generator
    generator.set_offset(12)
    state = generator.get_state()
    assert (state.dtype, state.shape, state.device.type) == (torch.uint8, (16,), "cpu")
    other = torch.Generator("cuda")
    other.set_state(state)
    assert (other.initial_seed(), other.get_offset()) == (7, 12)
    assert other.clone_state().initial_seed() == 7
    assert pickle.loads(pickle.dumps(other)).get_offset() == 12
    assert torch.randn(2, 3, device="cuda", generator=generator).shape == (2, 3)
    assert torch.randperm(5, device="cuda", generator=generator).dtype is torch.int64


def test_seeds_differ(gpu: VirtualGpu) -> None:
    generator = torch.Generator("cuda")
    assert generator.seed() != generator.seed()


def test_bad_states_are_refused(gpu: VirtualGpu) -> None:
    generator = torch.Generator("cuda")
    with pytest.raises(RuntimeError, match="wrong size"):
        generator.set_state(torch.zeros(5, dtype=torch.uint8))
    with pytest.raises(TypeError, match="ByteTensor"):
        generator.set_state(torch.zeros(16))


def test_global_state(gpu: VirtualGpu) -> None:
    torch.cuda.manual_seed(5)
    assert torch.cuda.initial_seed() == 5
    saved = torch.cuda.get_rng_state()
    torch.manual_seed(6)
    assert torch.cuda.initial_seed() == 6
    torch.cuda.set_rng_state(saved)
    assert torch.cuda.initial_seed() == 5
    assert len(torch.cuda.get_rng_state_all()) == 1
    torch.cuda.set_rng_state_all([saved])
    torch.cuda.seed_all()
    with torch.random.fork_rng(devices=[0]):
        torch.cuda.manual_seed(99)
    assert torch.cuda.initial_seed() != 99


def test_checkpointing_restores_it(gpu: VirtualGpu) -> None:
    layer = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5)).cuda()
    x = torch.ones(2, 4, device="cuda", requires_grad=True)
    for reentrant in (False, True):
        checkpoint(layer, x, use_reentrant=reentrant, preserve_rng_state=True).sum().backward()
    assert x.grad is not None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(st.integers(0, 2**64 - 1), st.integers(0, 2**63 - 1))
def test_state_round_trips(seed: int, offset: int) -> None:
    generator = ours.Generator("cuda")
    generator.manual_seed(seed)
    generator.set_offset(offset)
    other = ours.Generator("cuda")
    other.set_state(generator.get_state())
    assert (other.initial_seed(), other.get_offset()) == (seed, offset)
