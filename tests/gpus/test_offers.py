from __future__ import annotations

import http.server
import json
import os
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest

from ebbtide.errors import UsageError
from ebbtide.gpus import catalogue
from ebbtide.gpus.offers import bundled, offers, refresh

HEADER = "Cloud,GPU Type,GPU Arch,GPUs,GPU RAM,vCPUs,RAM,On-demand,Per-GPU,Spot,Name\n"
AWS = HEADER + "AWS,L4 (24 GB),Ada,1,24,4,16,0.80,0.80,,g6.xlarge\n"
SKY = (
    "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,GpuInfo,SpotPrice\n"
)
LAMBDA = SKY + "gpu_1x,H200,1,8,64,3.5,here,,\n"


@pytest.fixture
def price_file(tmp_path: Path) -> Path:
    path = tmp_path / "prices.csv"
    path.write_text(AWS)
    os.utime(path, (1767312000, 1767312000))  # 2026-01-02
    return path


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    pages = {"/prices.csv": AWS.encode(), "/empty.csv": HEADER.encode(), "/bytes": b"\xff\xfe\x00"}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = pages.get(self.path)
            self.send_response(200 if body is not None else 404)
            self.send_header("Last-Modified", "Fri, 02 Jan 2026 10:00:00 GMT")
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def test_offers_are_bundled(cache: Path) -> None:
    found = offers(cache)
    assert found == bundled().offers
    assert len(found) > 300
    assert len({offer.provider for offer in found}) > 20
    for offer in found:
        assert offer.gpu in catalogue()
        assert 0.05 < offer.usd_per_gpu_hour < 20
        assert offer.date == date(2025, 3, 7)
        assert "the-full-stack" in offer.source


def test_the_bundled_lists_have_the_errors_that_were_known() -> None:
    problems = bundled().problems
    kinds = Counter(
        kind
        for problem in problems
        for kind in ("is that of one", "are not", "no price for", "fits none")
        if kind in problem.text
    )
    assert kinds["is that of one"] == 10
    assert kinds["no price for"] == 4
    assert kinds["fits none"] == 1
    assert sum(problem.dropped for problem in problems) == 5


def test_bundled_prices_of_the_file() -> None:
    azure = [
        offer
        for offer in bundled().offers
        if offer.instance == "NC24ads A100 v4" and offer.provider == "Azure"
    ]
    assert [(o.gpu, o.usd_per_gpu_hour, o.spot) for o in azure] == [
        ("a100-80gb", 3.67, False),
        ("a100-80gb", 1.47, True),
    ]


def test_spot_is_never_dearer_than_on_demand() -> None:
    on_demand = {
        (o.provider, o.instance, o.gpu, o.count): o.usd_per_gpu_hour
        for o in bundled().offers
        if not o.spot and o.instance
    }
    for offer in bundled().offers:
        if offer.spot and offer.instance:
            key = (offer.provider, offer.instance, offer.gpu, offer.count)
            assert offer.usd_per_gpu_hour <= on_demand[key]


def test_a_refreshed_file_stands_in_for_its_provider_alone(price_file: Path, cache: Path) -> None:
    found = refresh(str(price_file), cache_dir=cache)
    assert [offer.date for offer in found.offers] == [date(2026, 1, 2)]
    now = offers(cache)
    assert [offer.instance for offer in now if offer.provider == "AWS"] == ["g6.xlarge"]
    others = tuple(offer for offer in bundled().offers if offer.provider != "AWS")
    assert now[1:] == others


def test_refreshing_another_provider_keeps_the_first(price_file: Path, cache: Path) -> None:
    refresh(str(price_file), cache_dir=cache)
    price_file.write_text(LAMBDA)
    refresh(str(price_file), provider="Lambda", cache_dir=cache)
    mine = [offer for offer in offers(cache) if offer.provider in ("AWS", "Lambda")]
    assert [(offer.provider, offer.gpu) for offer in mine] == [("AWS", "l4"), ("Lambda", "h200")]


def test_refreshing_again_replaces(price_file: Path, cache: Path) -> None:
    refresh(str(price_file), cache_dir=cache)
    price_file.write_text(AWS.replace("0.80", "0.60"))
    refresh(str(price_file), cache_dir=cache)
    aws = [offer for offer in offers(cache) if offer.provider == "AWS"]
    assert [offer.usd_per_gpu_hour for offer in aws] == [0.6]


def test_the_users_own_cache_is_used(
    price_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    refresh(str(price_file))
    assert (tmp_path / "xdg" / "ebbtide" / "offers.json").exists()
    assert offers()[0].instance == "g6.xlarge"


def test_from_an_address(server: str, cache: Path) -> None:
    found = refresh(f"{server}/prices.csv", cache_dir=cache)
    assert [(offer.gpu, offer.date) for offer in found.offers] == [("l4", date(2026, 1, 2))]
    assert offers(cache)[0].source == f"{server}/prices.csv"


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/missing.csv", "cannot be reached: HTTP Error 404"),
        ("/empty.csv", "holds no offer"),
        ("/bytes", "is no text"),
    ],
)
def test_an_address_that_holds_no_prices(server: str, cache: Path, path: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        refresh(server + path, cache_dir=cache)
    assert not cache.exists()


def test_without_a_network_the_message_says_what_to_do(cache: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: refused at once
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/prices.csv"
        with pytest.raises(UsageError, match="Without a network, give a file"):
            refresh(url, cache_dir=cache)
    assert not cache.exists()


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/prices.csv", "file:///etc/passwd"])
def test_other_schemes_are_refused(url: str, cache: Path) -> None:
    with pytest.raises(UsageError, match="http, https or a file"):
        refresh(url, cache_dir=cache)


def test_a_file_that_is_not_there(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        refresh(str(tmp_path / "no.csv"), cache_dir=cache)


def test_a_file_of_unusable_rows_changes_nothing(price_file: Path, cache: Path) -> None:
    refresh(str(price_file), cache_dir=cache)
    before = (cache / "offers.json").read_bytes()
    price_file.write_text(HEADER + "X,S1070 (4 GB),Tesla,1,4,4,16,0.5,0.5,,n\n")
    with pytest.raises(UsageError, match="no such GPU in the catalogue"):
        refresh(str(price_file), cache_dir=cache)
    assert (cache / "offers.json").read_bytes() == before


def test_a_list_that_does_not_say_who_offers(price_file: Path, cache: Path) -> None:
    price_file.write_text(LAMBDA)
    with pytest.raises(UsageError, match="--provider"):
        refresh(str(price_file), cache_dir=cache)
    assert not cache.exists()


def test_a_failed_write_leaves_the_old_file_and_no_rubbish(
    price_file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refresh(str(price_file), cache_dir=cache)
    before = (cache / "offers.json").read_bytes()

    def full(*args: object, **named: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(UsageError, match="No space left"):
        refresh(str(price_file), cache_dir=cache)
    assert [path.name for path in cache.iterdir()] == ["offers.json"]
    assert (cache / "offers.json").read_bytes() == before


def test_a_directory_that_cannot_be_made(price_file: Path) -> None:
    with pytest.raises(UsageError, match="cannot be kept"):
        refresh(str(price_file), cache_dir=price_file / "below-a-file")


def damaged(change: str) -> str:
    entry = {
        "provider": "AWS",
        "gpu": "l4",
        "count": 1,
        "usd_per_gpu_hour": 1.0,
        "spot": False,
        "serverless": False,
        "instance": "n",
        "source": "s",
        "date": "2026-01-02",
    }
    data = {"version": 1, "offers": [entry]}
    if change == "version":
        data["version"] = 9
    elif change == "field":
        entry["colour"] = "red"
    elif change == "gap":
        del entry["count"]
    elif change == "date":
        entry["date"] = "soon"
    return json.dumps(data) if change != "cut" else json.dumps(data)[:40]


@pytest.mark.parametrize("change", ["version", "field", "gap", "date", "cut"])
def test_damaged_refreshed_offers_are_said(cache: Path, change: str) -> None:
    cache.mkdir()
    (cache / "offers.json").write_text(damaged(change))
    with pytest.raises(UsageError, match=r"offers\.json cannot be read.*Delete the file"):
        offers(cache)


def test_kept_offers_of_a_gpu_no_longer_known_are_left_out(cache: Path) -> None:
    cache.mkdir()
    (cache / "offers.json").write_text(damaged("").replace('"l4"', '"l5"'))
    assert offers(cache) == bundled().offers
