from __future__ import annotations

import pickle
import pickletools
import struct
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.errors import SnapshotError
from ebbtide.trace.unpickle import loads

KEYS = st.one_of(
    st.text(max_size=8),
    st.integers(-(2**60), 2**60),
    st.booleans(),
    st.none(),
    st.binary(max_size=8),
    st.tuples(st.integers(0, 9), st.integers(0, 9)),
)
PLAIN = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**120), 2**120),
        st.floats(allow_nan=False),
        st.text(max_size=300),
        st.binary(max_size=300),
        st.frozensets(st.integers(0, 5)),
        st.sets(st.text(max_size=3), max_size=3),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.tuples(inner),
        st.tuples(inner, inner, inner, inner),
        st.dictionaries(KEYS, inner, max_size=5),
    ),
    max_leaves=40,
)


@given(PLAIN, st.integers(2, 5))
def test_plain_data_comes_back(value: object, protocol: int):
    data = pickle.dumps(value, protocol=protocol)
    uses_a_class = any(
        op.name in ("GLOBAL", "STACK_GLOBAL") for op, _, _ in pickletools.genops(data)
    )
    if uses_a_class:  # sets and bytes before protocols 4 and 3 are calls
        with pytest.raises(SnapshotError, match="load a class"):
            loads(data)
    else:
        assert loads(data) == value


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_shared_parts_stay_shared(protocol: int):
    part = ["frame"]
    first, second = loads(pickle.dumps([part, part], protocol=protocol))
    assert first is second


def test_bytearrays_come_back_as_bytes():
    assert loads(pickle.dumps(bytearray(b"abc"), protocol=5)) == b"abc"


def test_file_names_of_any_kind():
    name = b"caf\xe9.py".decode("utf-8", "surrogateescape")
    assert loads(pickle.dumps([name, "ü" * 300], protocol=4)) == [name, "ü" * 300]


def test_many_values_use_the_long_memo():
    value = [[str(i)] for i in range(400)]
    for protocol in (2, 4):
        assert loads(pickle.dumps(value + value, protocol=protocol)) == value + value


class Trap:
    """Runs code when unpickled by Python itself."""

    def __reduce__(self):
        return (pytest.fail, ("the file was executed",))


class State:
    pass


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("value", [Trap(), State(), print, int, [{"a": Trap()}]])
def test_classes_and_functions_are_refused(value: object, protocol: int):
    with pytest.raises(SnapshotError, match="refused"):
        loads(pickle.dumps(value, protocol=protocol))


@pytest.mark.parametrize(
    "code",
    [
        b"cos\nsystem\n",
        b"\x8c\x02os\x8c\x06system\x93",
        b"R",
        b"b",
        b"(ios\nsystem\n",
        b"(o",
        b"\x81",
        b"\x92",
        b"P1\n",
        b"Q",
        b"\x82\x01",
        b"\x83\x01\x00",
        b"\x84\x01\x00\x00\x00",
        b"\x97",
        b"\x98",
    ],
)
def test_every_instruction_that_runs_something_is_refused(code: bytes):
    with pytest.raises(SnapshotError, match=r"refused"):
        loads(b"\x80\x04]]" + code + b".")


@pytest.mark.parametrize("data", [b"", b"hello", b"\x1f\x8b", b"(lp0\n.", b"{", b"PK\x03\x04"])
def test_what_is_no_pickle(data: bytes):
    with pytest.raises(SnapshotError, match="not a pickle"):
        loads(data)


@pytest.mark.parametrize("version", [0, 1, 6, 255])
def test_other_protocols(version: int):
    with pytest.raises(SnapshotError, match="protocol"):
        loads(bytes([0x80, version]) + b"N.")


def test_every_cut_is_noticed():
    value = {"segments": [{"address": 1 << 40, "frames": ["x" * 300]}], "n": [1, 300, 70000, 0.5]}
    for protocol in (2, 4):
        data = pickle.dumps(value, protocol=protocol)
        for end in range(len(data)):
            with pytest.raises(SnapshotError):
                loads(data[:end])


@given(st.binary(max_size=200))
@settings(max_examples=400)
def test_noise_is_refused_or_plain(noise: bytes):
    try:
        loads(b"\x80\x04" + noise)
    except SnapshotError:
        pass


@given(PLAIN, st.integers(0, 10**6), st.integers(0, 255))
@settings(max_examples=400)
def test_one_wrong_byte_does_no_harm(value: object, place: int, byte: int):
    data = bytearray(pickle.dumps(value, protocol=4))
    data[place % len(data)] = byte
    try:
        loads(bytes(data))
    except SnapshotError:
        pass


@pytest.mark.parametrize(
    "claim",
    [
        b"X" + struct.pack("<I", 2**32 - 1),
        b"\x8d" + struct.pack("<Q", 2**40),
        b"B" + struct.pack("<I", 2**31),
        b"\x8e" + struct.pack("<Q", 2**62),
        b"\x96" + struct.pack("<Q", 2**63 + 5),
        b"\x8b" + struct.pack("<I", 2**31),
        b"\x8a\xff" + b"\x01" * 255,
        b"N" + b"r" + struct.pack("<I", 2**32 - 1) + b"j" + struct.pack("<I", 7),
        b"j" + struct.pack("<I", 2**32 - 1),
        b"\x95" + struct.pack("<Q", 2**63),
    ],
)
def test_claims_cost_nothing(claim: bytes):
    tracemalloc.start()
    try:
        with pytest.raises(SnapshotError):
            loads(b"\x80\x04" + claim)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_depth_costs_no_stack():
    deep = loads(b"\x80\x04" + b"]" * 300_000 + b"a" * 299_999 + b".")
    assert isinstance(deep, list)
    nested = b"\x80\x04)" + b"\x85" * 300_000 + b"."
    assert isinstance(loads(nested), tuple)


@pytest.mark.parametrize(
    "key",
    [
        b")" + b"\x85" * 100_000,  # hashing it would overflow the stack
        b")" + b"\x94h\x00h\x00\x86" * 60,  # hashing it would take for ever
        b"]",
        b"}",
        b"(" + b"K\x01" * 20 + b"t",
    ],
)
def test_keys_are_flat(key: bytes):
    for code in (
        b"}" + key + b"Ns",
        b"}(" + key + b"Nu",
        b"\x8f(" + key + b"\x90",
        b"(" + key + b"\x91",
        b"(" + key + b"Nd",
    ):
        with pytest.raises(SnapshotError):
            loads(b"\x80\x04" + code + b".")


@pytest.mark.parametrize(
    "code",
    [
        b".",  # nothing
        b"NN.",  # two values
        b"(N.",  # an open mark
        b"]N(e.",  # a list that is hidden by a mark
        b"Na.",  # appending to nothing
        b"}Na.",  # appending to a dict
        b"]NNs.",  # a dict item for a list
        b"}(Nu.",  # a key without a value
        b"e.",  # no mark
        b"0.",
        b"2.",
        b"\x85.",
        b"N\x86.",
        b"\x94.",
        b"h\x05.",
        b"\x8c\x02\xff\xff.",  # no text
        b"\x8a\x02\x01",
    ],
)
def test_programs_that_make_no_sense(code: bytes):
    with pytest.raises(SnapshotError):
        loads(b"\x80\x04" + code)


def test_rare_instructions():
    assert loads(b"\x80\x02(K\x01K\x02l.") == [1, 2]
    assert loads(b"\x80\x02(K\x01K\x02d.") == {1: 2}
    assert loads(b"\x80\x02K\x01(K\x02K\x031.") == 1  # what a mark opened, dropped
    assert loads(b"\x80\x02K\x01K\x020.") == 1
    assert loads(b"\x80\x02]K\x012\x86a.") == [(1, 1)]
    assert loads(b"\x80\x02\x8b\x03\x00\x00\x00\x00\x00\x01.") == 65536
    assert loads(b"\x80\x02U".replace(b"U", b"") + b"M\x01\x02.") == 513
    assert loads(b"\x80\x02}K\x05\x88s.") == {5: True}
    assert loads(b"\x80\x02Nq\x00h\x00\x86.") == (None, None)
