"""A client's program at work: what it prints, line by line."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from typing import Any, Self

from clients.conformance.languages import PATH, Language

PATIENCE = 60.0
"""Seconds that a program has for what is waited for."""

LINE_BYTES = 1024 * 1024


class Wrong(Exception):
    """A program did not do what it must. The message says what."""


class Program:
    """A running `converse`. Use it as an async context manager: it does not outlive that."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._news = asyncio.Event()
        self._reading = asyncio.gather(self._read(), self._hear())
        self.lines: list[dict[str, Any]] = []
        self._complaints = b""

    @classmethod
    async def start(cls, language: Language, key: str, *arguments: str) -> Self:
        """Starts it with its arguments, and with the key in its environment."""
        environment = {"PATH": PATH, "HANDMESH_API_KEY": key, "HOME": os.environ.get("HOME", "/"), "LANG": "C.UTF-8"}
        process = await asyncio.create_subprocess_exec(
            *language.program,
            *arguments,
            cwd=language.folder,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=LINE_BYTES,
        )
        return cls(process)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await self._reading

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self.lines.append(json.loads(line))
            self._news.set()
        self._news.set()

    async def _hear(self) -> None:
        assert self._process.stderr is not None
        self._complaints = await self._process.stderr.read()

    async def until(self, holds: Callable[[list[dict[str, Any]]], bool], what: str) -> None:
        """Waits until it has printed what is waited for. Raises Wrong when it ends before, or takes too long."""
        try:
            async with asyncio.timeout(PATIENCE):
                while not holds(self.lines):
                    if self._reading.done():
                        raise Wrong(f"it ended before {what}: {self._last()}")
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise Wrong(f"it waited in vain for {what}: {self._last()}") from None

    async def ended(self, code: int) -> list[dict[str, Any]]:
        """Waits for its end and returns all lines. Raises Wrong when its exit code is another, or it does not end."""
        try:
            async with asyncio.timeout(PATIENCE):
                await self._reading
                found = await self._process.wait()
        except TimeoutError:
            raise Wrong(f"it does not end: {self._last()}") from None
        if found != code:
            raise Wrong(f"it ended with {found} and not {code}: {self._last()}")
        return self.lines

    def _last(self) -> str:
        return f"{json.dumps(self.lines[-1:])} {self._complaints.decode(errors='replace')[-2_000:]}"
