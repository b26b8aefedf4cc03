"""Data moved through all engines with the operators' commands."""

import asyncio
import itertools
import json

import pytest

from tests.conformance.conftest import ENGINES

LASTING = [engine.name for engine in ENGINES if engine.lasting]


def hashes(run, url):
    """Verify a store; return the lines, which must be equal for a copy."""
    code, out, err = run("verify", "--store", url, "--json")
    assert (code, err) == (0, ""), out
    return [json.loads(line) for line in out.splitlines()]


async def in_thread(function, *args):
    """Run a command, which has its own event loop."""
    return await asyncio.to_thread(function, *args)


@pytest.mark.timeout(240)
async def test_data_goes_round_all_engines_and_comes_back_as_it_was(run, talked, place_on):
    """All hashes of sessions, audit and settings are equal on each engine."""
    chain = [talked, *(place_on(name) for name in LASTING), place_on("sqlite", 1)]
    before = await in_thread(hashes, run, talked)
    total = before[-1]
    assert total["sessions"] >= 9
    assert total["audit"] >= 8
    assert total["settings"] == 2
    assert total["damaged"] == 0
    for source, target in itertools.pairwise(chain):
        code, out, err = await in_thread(run, "copy", "--from", source, "--to", target, "--json")
        assert (code, err) == (0, "")
        copied = json.loads(out)
        assert copied["sessions"] == copied["written"] == total["sessions"]
        assert copied["changes"] == total["changes"]
        assert copied["audit"] == total["audit"]
        assert await in_thread(hashes, run, target) == before


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", LASTING)
async def test_repeated_copy_writes_nothing_and_finds_what_is_new(run, talked, place_on, name):
    """A repeat costs as much as has changed; --again checks everything, and writes nothing."""
    target = place_on(name)
    await in_thread(run, "copy", "--from", talked, "--to", target)
    for option in ([], ["--again"]):
        code, out, _ = await in_thread(
            run, "copy", "--from", talked, "--to", target, "--json", *option
        )
        copied = json.loads(out)
        assert code == 0
        assert copied["refused"] == []
        assert (copied["written"], copied["changes"], copied["audit"]) == (0, 0, 0)
        assert (copied["sessions"] > 0) == bool(option)
    assert await in_thread(hashes, run, target) == await in_thread(hashes, run, talked)
