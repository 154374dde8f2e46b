"""A request survives the way to the process that carries it out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ebbtide.workloads.options import Lora, WorkloadOptions
from ebbtide.workloads.request import Request

texts = st.text(max_size=20)
options = st.builds(
    WorkloadOptions,
    batch=st.none() | st.integers(1, 999),
    seq=st.none() | st.integers(1, 999),
    amp=st.sampled_from((None, "bf16")),
    lora=st.none() | st.builds(Lora, r=st.integers(1, 64), targets=st.tuples(texts, texts)),
)


@given(
    st.builds(
        Request,
        kind=texts,
        target=texts,
        gpus=st.tuples(texts),
        folder=texts,
        batch=st.none() | st.integers(1, 999),
        curve=st.booleans(),
        args=st.lists(texts).map(tuple),
        options=options,
        seconds=st.floats(0.1, 1e6),
        torch_version=st.none() | st.tuples(st.integers(1, 3), st.integers(0, 20)),
    )
)
def test_round_trip(request_: Request) -> None:
    there = Request.from_text(request_.to_text())
    assert there == request_
    assert isinstance(there.args, tuple)
    assert there.options.lora is None or isinstance(there.options.lora.targets, tuple)


def test_what_is_not_said_is_the_default() -> None:
    made = Request.from_text(Request(kind="script", target="a.py").to_text())
    assert made.curve and made.args == () and made.batch is None
    assert made.options == WorkloadOptions()
