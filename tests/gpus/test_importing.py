from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.errors import UsageError
from ebbtide.gpus.importing import Offer, PriceList, problems_by_text, read_prices

DATED = date(2026, 1, 2)
CLOUD = "Cloud,GPU Type,GPU Arch,GPUs,GPU RAM,vCPUs,RAM,On-demand,Per-GPU,Spot,Name\n"
SERVERLESS = "Vendor,GPU Type,GPU Arch,GPUs,GPU RAM,vCPUs,RAM,Per-Hour,Per-GPU\n"
SKY = (
    "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,GpuInfo,SpotPrice\n"
)


def read(text: str, provider: str = "") -> PriceList:
    return read_prices(text, source="a list", dated=DATED, provider=provider)


def only(text: str, provider: str = "") -> Offer:
    found = read(text, provider)
    assert len(found.offers) == 1, found
    return found.offers[0]


def said(found: PriceList) -> str:
    return "\n".join(problems_by_text(found.problems))


def sky(size: object, total: object, count: int = 1, name: str = "L4", price: str = "1.5") -> str:
    info = (
        f"{{'Gpus': [{{'Name': '{name}', 'Manufacturer': 'NVIDIA', 'Count': {count}, "
        f"'MemoryInfo': {{'SizeInMiB': {size}}}}}], 'TotalGpuMemoryInMiB': {total}}}"
    )
    return SKY + f'big,{name},{count},8,64,{price},here,"{info}",\n'


def test_a_row_of_a_cloud() -> None:
    row = "AWS,A100 (40 GB),Ampere,8,320,96,1152,32.77,4.10,9.83,p4d.24xlarge\n"
    on_demand, spot = read(CLOUD + row).offers
    assert on_demand == Offer(
        provider="AWS",
        gpu="a100-40gb",
        count=8,
        usd_per_gpu_hour=4.0963,
        spot=False,
        serverless=False,
        instance="p4d.24xlarge",
        source="a list",
        date=DATED,
    )
    assert spot.spot
    assert spot.usd_per_gpu_hour == pytest.approx(9.83 / 8, abs=1e-4)


def test_a_row_with_units_and_dollars() -> None:
    offer = only(SERVERLESS + "Mystic AI,Nvidia T4,Turing,1,16GB,0,0,$0.4,$0.4\n")
    assert (offer.gpu, offer.usd_per_gpu_hour, offer.serverless) == ("t4", 0.4, True)


def test_the_memory_tells_gpus_of_one_name_apart() -> None:
    offer = only(SERVERLESS + "Mystic AI,Nvidia A100,Ampere,1,80GB,0,0,$4,$4\n")
    assert offer.gpu == "a100-80gb"


@pytest.mark.parametrize("each", [24576, 23034])
def test_a_row_of_skypilot(each: int) -> None:
    offer = only(sky(each, each), provider="GCP")
    assert (offer.provider, offer.gpu, offer.usd_per_gpu_hour) == ("GCP", "l4", 1.5)
    assert offer.instance == "big"


def test_an_instance_without_a_gpu_is_left_out() -> None:
    found = read(SKY + 'small,,,2,8,0.1,here,,\nbig,T4,1,4,16,0.5,here,"",\n', "GCP")
    assert [offer.gpu for offer in found.offers] == ["t4"]
    assert said(found) == "line 2: no GPU in this instance (left out)"


def test_gib_in_a_field_for_mib_is_seen() -> None:
    found = read(sky(24, 24), "GCP")
    assert [offer.gpu for offer in found.offers] == ["l4"]
    assert "24 MiB a GPU is GiB in a field for MiB" in said(found)


def test_the_size_of_one_in_the_field_for_all_is_seen() -> None:
    found = read(sky(24576, 24576, count=4), "GCP")
    assert [offer.count for offer in found.offers] == [4]
    assert "the total memory of 4 GPUs is that of one" in said(found)
    found = read(CLOUD + "F,A100 (80 GB),Ampere,2,80,60,240,4.42,2.21,,\n")
    assert [offer.gpu for offer in found.offers] == ["a100-80gb"]
    assert "the total memory of 2 GPUs is that of one" in said(found)


def test_the_size_of_all_in_the_field_for_one_is_seen() -> None:
    found = read(sky(4 * 24576, 4 * 24576, count=4), "GCP")
    assert [offer.gpu for offer in found.offers] == ["l4"]
    assert "the memory of one GPU is that of all 4" in said(found)


def test_a_size_that_the_gpu_does_not_come_in_is_left_out() -> None:
    found = read(SERVERLESS + "Modal,A100 (20 GB),Ampere,1,20,4,16,3.07,3.07\n")
    assert found.offers == ()
    assert "20 GiB memory fits none of the GPUs of that name (left out)" in said(found)


def test_a_spot_price_alone_is_left_out() -> None:
    found = read(CLOUD + "X,T4 (16 GB),Turing,1,16,4,16,,,0.16,cheap\n")
    assert found.offers == ()
    assert "a spot price without an on-demand price (left out)" in said(found)


def test_spot_above_on_demand_is_not_believed() -> None:
    found = read(CLOUD + "X,T4 (16 GB),Turing,1,16,4,16,0.5,0.5,0.9,odd\n")
    assert [offer.spot for offer in found.offers] == [False]
    assert "spot 0.9 above on-demand 0.5" in said(found)


def test_a_total_under_one_gpu_cannot_be_told_from_a_price_of_one() -> None:
    rows = (
        "Exoscale,3080Ti (12 GB),Ampere,1,12,12,56,,0.92361,,SMALL\n"
        "Exoscale,3080Ti (12 GB),Ampere,2,24,24,112,,1.70868,,MEDIUM\n"
    )
    found = read(CLOUD + rows)
    assert [(offer.count, offer.usd_per_gpu_hour) for offer in found.offers] == [(1, 0.9236)]
    assert "no price for 2 GPUs together" in said(found)


def test_prices_that_disagree_are_said_and_the_total_is_taken() -> None:
    found = read(CLOUD + "O,RTX4000 (8 GB),Turing,2,16,4,24,0.82,0.27,,\n")
    assert [offer.usd_per_gpu_hour for offer in found.offers] == [0.41]
    assert "2 GPUs at 0.27 are not 0.82" in said(found)


def test_cents_that_were_rounded_are_no_disagreement() -> None:
    found = read(SERVERLESS + "Baseten,T4 (16 GB),Turing,1,16,4,16,0.63,0.64\n")
    assert found.problems == ()


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("X,S1070 (4 GB),Tesla,1,4,4,16,0.5,0.5,,n\n", "no such GPU in the catalogue"),
        ("X,T4 (16 GB),Turing,none,16,4,16,0.5,0.5,,n\n", "'none' is no number"),
        ("X,T4 (16 GB),Turing,0,16,4,16,0.5,0.5,,n\n", "0 GPUs"),
        ("X,T4 (16 GB),Turing,1,16,4,16,cheap,0.5,,n\n", "'cheap' is no number"),
        ("X,T4 (16 GB),Turing,1,16,4,16,0,0,,n\n", "no price"),
        ("X,T4 (16 GB),Turing,1,16,4,16,-1,-1,,n\n", "no price"),
        ("X,T4 (16 GB),Turing,1,16,4,16,nan,0.5,,n\n", "'nan' is no number"),
        ("X,T4 (16 GB),Turing,inf,16,4,16,1,0.5,,n\n", "'inf' is no number"),
        ("X,T4 (16 GB)\n", "0 GPUs"),
    ],
)
def test_a_row_that_makes_no_sense_is_left_out_and_said(row: str, why: str) -> None:
    good = "X,T4 (16 GB),Turing,1,16,4,16,0.5,0.5,,good\n"
    found = read(CLOUD + row + good)
    assert [offer.instance for offer in found.offers] == ["good"]
    assert found.problems[0].line == 2
    assert found.problems[0].dropped
    assert why in said(found)


@pytest.mark.parametrize("info", ["{'Gpus': []}", "__import__('os')", "{'Gpus'", "[1]"])
def test_what_stands_for_the_gpu_is_never_executed(info: str) -> None:
    found = read(SKY + f'big,L4,1,8,64,1.5,here,"{info}",\n', "GCP")
    assert found.offers == ()
    assert "GpuInfo cannot be read" in said(found)


def test_the_same_offer_twice_counts_once() -> None:
    row = "AWS,T4 (16 GB),Turing,1,16,16,64,1.20,1.20,0.36,g4dn.4xlarge\n"
    assert len(read(CLOUD + 3 * row).offers) == 2


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "<html></html>", "GPU Type,GPUs\nT4,1\n"])
def test_another_layout_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="columns that are not known"):
        read(text)


@given(
    st.integers(1, 16),
    st.floats(0.01, 200).map(lambda price: round(price, 2)),
    st.sampled_from([("L4", 24, "l4"), ("T4", 16, "t4"), ("A6000", 48, "rtx-a6000")]),
)
def test_price_and_count_come_back(count: int, price: float, gpu: tuple[str, int, str]) -> None:
    name, gib, key = gpu
    row = f"X,{name} ({gib} GB),any,{count},{count * gib},4,16,{price},,,n\n"
    found = read(CLOUD + row)
    assert found.problems == ()
    assert [(offer.gpu, offer.count) for offer in found.offers] == [(key, count)]
    assert found.offers[0].usd_per_gpu_hour * count == pytest.approx(price, abs=1e-3)


@given(st.lists(st.text(alphabet="A1, .$\"'\n()", max_size=20), max_size=5))
def test_any_rows_are_read_or_said_to_be_wrong(rows: list[str]) -> None:
    found = read(CLOUD + "\n".join(rows))
    assert all(offer.usd_per_gpu_hour > 0 for offer in found.offers)
