"""`busway bench` as its user runs it, against real processes: what it tells is what the server counted."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.support.fleet import free_port
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]


async def start(*options):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("BUSWAY_", "REDIS_URL"))}
    return await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", "shared.cli.main", "bench", *map(str, options)],
        env={**clean, "PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def bench(*options):
    """(exit status, output, errors)."""
    process = await start(*options)
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def test_both_lanes_are_measured_as_the_gateway_counted_them(fleet, tmp_path):
    await fleet.worker(WORKER__ECHO__STEP_MS="1")
    gateway = await fleet.gateway()
    figures, picture = tmp_path / "figures.json", tmp_path / "picture.png"
    load = ["--rate", 40, "--requests", 20, "--bulk-concurrency", 4, "--output-tokens", "5-9", "--ignore-eos"]

    status, out, err = await bench(*load, "--url", f"{gateway.url}/v1", "--json", figures, "--plot", picture)

    assert (status, err) == (0, "")
    told = json.loads(figures.read_text())
    assert told["settings"]["model"] == "echo"
    assert told["lanes"]["interactive"]["requests"] == 20
    assert told["lanes"]["bulk"]["requests"] >= 4
    for lane, one in told["lanes"].items():
        for figure in ("ttft_ms", "itl_ms", "e2e_ms"):
            assert 0 <= one[figure]["p50"] <= one[figure]["p95"] <= one[figure]["p99"]
        assert one["tokens_per_s"] > 0
        assert (one["errors"], one["counted_by_events"]) == (0, 0)
        assert one["completed"] == one["requests"] == one["ttft_ms"]["count"]
        assert one["itl_ms"]["count"] == one["output_tokens"] - one["requests"], "one event is one token here"
        assert one["requests"] == await gateway.metric("busway_requests_total", lane=lane)
        assert one["output_tokens"] == await gateway.metric("busway_generation_tokens_total", lane=lane)
        assert one["prompt_tokens"] == await gateway.metric("busway_prompt_tokens_total", lane=lane)
        assert f"{lane} " in out
    assert picture.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert picture.stat().st_size > 20_000


async def test_text_completions_without_a_tier_are_all_interactive(fleet, tmp_path):
    await fleet.worker()
    gateway = await fleet.gateway()
    load = ["--bulk-rate", "inf", "--requests", 8, "--endpoint", "completions", "--no-tier"]

    status, _, err = await bench(*load, "--url", gateway.url)

    assert (status, err) == (0, "")
    assert await gateway.metric("busway_requests_total", lane="interactive", endpoint="completions") == 8


async def test_ctrl_c_ends_it_and_reports_what_was_seen(fleet, tmp_path):
    await fleet.worker(WORKER__ECHO__STEP_MS="5")
    gateway = await fleet.gateway()
    figures = tmp_path / "figures.json"
    load = ["--bulk-concurrency", 3, "--bulk-output-tokens", 1500, "--ignore-eos", "--duration", 600]

    process = await start(*load, "--url", gateway.url, "--json", figures)
    await wait_until(lambda: _in_flight(gateway, 3), "three requests")
    process.send_signal(signal.SIGINT)
    out, err = await process.communicate()

    assert (process.returncode, err) == (1, b""), "no answer was whole"
    assert b"interrupted" in out
    lane = json.loads(figures.read_text())["lanes"]["bulk"]
    assert (lane["requests"], lane["unfinished"], lane["errors"]) == (3, 3, 0)
    await wait_until(lambda: _cancelled(gateway, 3), "the gateway to take them back")


async def _in_flight(gateway, count):
    return await gateway.metric("busway_requests_in_flight", lane="bulk") == count


async def _cancelled(gateway, count):
    return await gateway.metric("busway_cancels_sent_total") == count


async def test_a_dead_server_is_counted_and_fails(tmp_path):
    figures = tmp_path / "figures.json"

    status, out, _ = await bench(
        "--url", f"http://127.0.0.1:{free_port()}", "--model", "m", "--rate", "inf", "--requests", 7, "--json", figures
    )

    assert status == 1
    lane = json.loads(figures.read_text())["lanes"]["interactive"]
    assert lane["errors_by_kind"] == {"connect": 7}
    assert lane["errors"] == lane["requests"] == 7
    assert lane["ttft_ms"] == {"p50": None, "p95": None, "p99": None, "mean": None, "max": None, "count": 0}
    assert "7 x connect" in out


async def test_some_errors_fail_only_if_asked_to(fleet):
    await fleet.worker()
    gateway = await fleet.gateway()
    load = ["--url", gateway.url, "--rate", "inf", "--requests", 3, "--max-in-flight", 1]

    tolerant, out, _ = await bench(*load)
    strict, _, _ = await bench(*load, "--fail-on-errors")

    assert (tolerant, strict) == (0, 1)
    assert "2 x not_sent" in out


async def test_wrong_use_is_told_before_anything_is_asked(tmp_path):
    for options, word in (
        ([], "load"),
        (["--rate", 1, "--concurrency", 2], "rate or a concurrency"),
        (["--rate", 1, "--prompt-tokens", "9-1"], "range"),
        (["--rate", 1, "--json", tmp_path / "none" / "x.json"], "no folder"),
    ):
        status, _, err = await bench(*options)

        assert status == 2
        assert word in err


async def test_nobody_to_name_a_model_is_told():
    status, _, err = await bench("--url", f"http://127.0.0.1:{free_port()}", "--rate", 1)

    assert status == 1
    assert "is `busway up` running" in err
