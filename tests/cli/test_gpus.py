from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from ebbtide.cli.gpus import gpus
from ebbtide.errors import UnknownGpuError, UsageError
from ebbtide.gpus import catalogue, find
from ebbtide.gpus.offers import bundled
from ebbtide.units import GiB

HEADER = "Cloud,GPU Type,GPU Arch,GPUs,GPU RAM,vCPUs,RAM,On-demand,Per-GPU,Spot,Name\n"
Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    app = typer.Typer()
    app.command()(gpus)

    def call(*args: str, width: int = 80) -> Result:
        env = {"COLUMNS": str(width), "XDG_CACHE_HOME": str(tmp_path), "NO_COLOR": "1"}
        return CliRunner().invoke(app, list(args), env=env)

    return call


def listed(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code in (0, 1), result.output
    entries: list[dict[str, Any]] = json.loads(result.stdout)
    return entries


def keys(result: Result) -> list[str]:
    return [entry["gpu"] for entry in listed(result)]


def rows(result: Result) -> list[str]:
    return [line.split()[0] for line in result.stdout.splitlines()[1:] if line.split()]


def test_all_are_listed_the_largest_first(run: Run) -> None:
    result = run()
    assert result.exit_code == 0
    found = [word for word in rows(result) if word in catalogue()]
    assert sorted(found) == sorted(catalogue())
    sizes = [find(key).memory_bytes for key in found]
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("width", [80, 120, 200])
@pytest.mark.parametrize("args", [(), ("--offers",), ("--offers", "--spot")])
def test_no_line_is_wider_than_the_screen(run: Run, width: int, args: tuple[str, ...]) -> None:
    result = run(*args, width=width)
    assert result.exit_code == 0
    assert max(len(line.rstrip()) for line in result.stdout.splitlines()) <= width


def test_no_row_takes_two_lines(run: Run) -> None:
    for width in (80, 200):
        lines = run("--memory", ">=40GiB", width=width).stdout.splitlines()
        large = [gpu for gpu in catalogue().values() if gpu.memory_bytes >= 40 * GiB]
        assert len(lines) == 1 + len(large)
        assert all(line.split()[0] in catalogue() for line in lines[1:])


def test_the_narrow_table_of_an_l4(run: Run) -> None:
    lines = run("l4").stdout.splitlines()
    assert lines[0].split() == [
        "GPU", "sold", "as", "usable", "TB/s", "FP32", "FP16", "FP8", "$/h", "from",
    ]  # fmt: skip
    assert lines[1].split() == ["l4", "24.0", "22.2", "0.30", "30", "121", "242", "0.75"]


def test_the_wide_table_says_more(run: Run) -> None:
    lines = run("l4", width=200).stdout.splitlines()
    assert "link GB/s" in lines[0]
    for word in ("NVIDIA L4", "Ada", "8.9", "58", "Mystic AI"):
        assert word in lines[1]


def test_a_derived_size_is_marked(run: Run) -> None:
    result = run("rtx-4070", "rtx-4090")
    lines = result.stdout.splitlines()
    assert "~" in next(line for line in lines if line.startswith("rtx-4070"))
    assert "~" not in next(line for line in lines if line.startswith("rtx-4090"))
    assert "~: derived" in result.stderr


def test_colours_are_left_out_of_what_is_piped(run: Run) -> None:
    assert "\x1b" not in run().stdout


def test_talk_does_not_mix_with_data(run: Run) -> None:
    result = run("l4")
    assert "Prices of 2025-03-07" in result.stderr
    assert "Prices" not in result.stdout
    assert run("l4", "--json").stderr == ""


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        (">=40GiB", lambda size: size >= 40 * GiB),
        (">40GiB", lambda size: size > 40 * GiB),
        ("40GiB", lambda size: size >= 40 * GiB),
        ("<= 8 GiB", lambda size: size <= 8 * GiB),
        ("<8GiB", lambda size: size < 8 * GiB),
        ("=24GiB", lambda size: size == 24 * GiB),
        ("==24GiB", lambda size: size == 24 * GiB),
        (">=80GB", lambda size: size >= 80 * 10**9),
    ],
)
def test_by_memory(run: Run, text: str, fits: Callable[[int], bool]) -> None:
    found = keys(run("--memory", text, "--json"))
    assert sorted(found) == sorted(
        key for key, gpu in catalogue().items() if fits(gpu.memory_bytes)
    )
    assert found


def test_by_price(run: Run) -> None:
    entries = listed(run("--max-price", "2", "--memory", ">=40GiB", "--json"))
    assert entries
    for entry in entries:
        assert entry["memory_bytes"] >= 40 * GiB
        assert entry["cheapest_offer"]["usd_per_gpu_hour"] <= 2
    cheap = {o.gpu for o in bundled().offers if o.usd_per_gpu_hour <= 2 and not o.spot}
    assert {entry["gpu"] for entry in entries} == {
        key for key in cheap if find(key).memory_bytes >= 40 * GiB
    }


def test_spot_prices_count_when_asked_for(run: Run) -> None:
    plain = listed(run("k80", "--json"))[0]["cheapest_offer"]
    spot = listed(run("k80", "--spot", "--json"))[0]["cheapest_offer"]
    assert (plain["usd_per_gpu_hour"], plain["spot"]) == (0.9, False)
    assert (spot["usd_per_gpu_hour"], spot["spot"]) == (0.09, True)


def test_by_architecture(run: Run) -> None:
    found = keys(run("--arch", "hopper", "--json"))
    assert "h200" in found
    assert {find(key).arch for key in found} == {"Hopper"}


@pytest.mark.parametrize(
    ("sort", "first"), [("memory", "mi355x"), ("name", "a10"), ("flops", "gb200")]
)
def test_sorted(run: Run, sort: str, first: str) -> None:
    assert keys(run("--sort", sort, "--json"))[0] == first


def test_sorted_by_bandwidth_and_by_price(run: Run) -> None:
    entries = listed(run("--sort", "bandwidth", "--json"))
    speeds = [entry["bandwidth_bytes_s"] for entry in entries]
    assert speeds == sorted(speeds, reverse=True)
    entries = listed(run("--sort", "price", "--json"))
    prices = [e["cheapest_offer"]["usd_per_gpu_hour"] for e in entries if e["cheapest_offer"]]
    assert prices == sorted(prices)
    assert all(entry["cheapest_offer"] is None for entry in entries[len(prices) :])


def test_a_name_of_several_lists_them_all(run: Run) -> None:
    assert keys(run("A100", "--json", "--sort", "name")) == [
        "a100-40gb",
        "a100-80gb",
        "a100-pcie-40gb",
        "a100-pcie-80gb",
    ]
    assert keys(run("Tesla T4", "l4", "t4", "--json")) == ["l4", "t4"]


def test_json_holds_the_figures_and_their_sources(run: Run) -> None:
    (entry,) = listed(run("h100 sxm", "--json"))
    gpu = find("h100-80gb")
    assert entry["usable_bytes"] == gpu.usable_bytes
    assert entry["compute_capability"] == [9, 0]
    assert entry["flops"] == dict(gpu.flops)
    assert entry["context_bytes"]["low"] < entry["context_bytes"]["high"]
    assert entry["cheapest_offer"]["date"] == "2025-03-07"
    assert entry["sources"]["flops.bfloat16"]["title"] == gpu.sources["flops.bfloat16"].title
    assert entry["sources"]["usable_bytes"]["date"]


def test_json_of_what_is_unknown_is_null(run: Run) -> None:
    (entry,) = listed(run("mi300x", "--json"))
    assert entry["compute_capability"] is entry["link_bytes_s"] is entry["sm_count"] is None
    assert entry["flops"] == {}


def test_offers_are_listed_the_cheapest_first(run: Run) -> None:
    entries = listed(run("a100-80gb", "--offers", "--max-price", "2", "--json"))
    prices = [entry["usd_per_gpu_hour"] for entry in entries]
    assert prices == sorted(prices)
    assert max(prices) <= 2
    assert {entry["gpu"] for entry in entries} == {"a100-80gb"}
    assert {"provider", "count", "spot", "instance", "source", "date"} <= set(entries[0])


def test_the_table_of_offers(run: Run) -> None:
    lines = run("h200", "gh200", "--offers").stdout.splitlines()
    assert len(lines) == 2
    assert lines[1].split()[:6] == ["gh200-96gb", "0.88", "1", "0.88", "Dataoorts", "on"]
    wide = run("gh200", "--offers", width=200).stdout
    assert "the-full-stack/website" in wide
    assert "2025-03-07" in wide


@pytest.mark.parametrize(
    "args", [("--memory", ">2TiB"), ("--max-price", "0.01"), ("mi300x", "--offers")]
)
def test_nothing_found_is_exit_code_1(run: Run, args: tuple[str, ...]) -> None:
    result = run(*args)
    assert result.exit_code == 1
    assert "Nothing matches" in result.stderr
    assert result.stdout == ""
    assert listed(run(*args, "--json")) == []


@pytest.mark.parametrize(
    ("args", "error", "said"),
    [
        (("rtx-9090",), UnknownGpuError, "Did you mean"),
        (("--memory", "lots"), UsageError, "'lots' is no size"),
        (("--memory", ">="), UsageError, "is no size"),
        (("--memory", ""), UsageError, "is empty"),
        (("--max-price", "0"), UsageError, "above 0"),
        (("--max-price", "-1"), UsageError, "above 0"),
        (("--max-price", "nan"), UsageError, "above 0"),
        (("--arch", "Rubinesque"), UsageError, "There are: Ada, Ampere"),
        (("--refresh", "/no/such/file.csv"), UsageError, "cannot be read"),
    ],
)
def test_bad_input_is_a_usage_error(
    run: Run, args: tuple[str, ...], error: type[UsageError], said: str
) -> None:
    result = run(*args)
    assert isinstance(result.exception, error)
    assert result.exception.exit_code == 2
    assert said in str(result.exception)
    assert result.stdout == ""


def test_refreshed_prices_are_used_from_then_on(run: Run, tmp_path: Path) -> None:
    prices = tmp_path / "prices.csv"
    prices.write_text(
        HEADER
        + "Harbour,L4 (24 GB),Ada,1,24,4,16,0.11,0.11,,tide\n"
        + "Harbour,A100 (20 GB),Ampere,1,20,4,16,1,1,,slice\n"
    )
    result = run("l4", "--refresh", str(prices), "--json")
    assert "line 3: A100: 20 GiB memory fits none" in result.stderr
    assert "Kept 1 offers" in result.stderr
    assert listed(result)[0]["cheapest_offer"]["provider"] == "Harbour"
    again = listed(run("l4", "--json"))[0]["cheapest_offer"]
    assert (again["provider"], again["usd_per_gpu_hour"]) == ("Harbour", 0.11)


def test_from_the_command_line(run_cli: Callable[..., Any]) -> None:
    done = run_cli("gpus", "l4", "--json")
    assert (done.returncode, json.loads(done.stdout)[0]["gpu"]) == (0, "l4")
    wrong = run_cli("gpus", "rtx-9090")
    assert wrong.returncode == 2
    assert wrong.stdout == ""
    assert wrong.stderr.startswith("ebbtide: No GPU called 'rtx-9090'")
    assert len(wrong.stderr.splitlines()) == 1
    assert run_cli("gpus", "--memory", ">2TiB").returncode == 1
