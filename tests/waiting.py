"""Waits for what another thread or process does: a fixed pause is too short on a busy machine."""

import asyncio
import time

SECONDS = 60


def wait_until(condition, seconds=SECONDS):
    """Returns the first true result of `condition()`; fails after so many seconds."""
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline, f"still false after {seconds} s"
        time.sleep(0.01)
    return result


async def until(condition, seconds=SECONDS):
    """`wait_until` in an event loop."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)
