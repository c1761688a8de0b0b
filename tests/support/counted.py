"""Reads metrics as Prometheus does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from services.kit import metrics


@dataclass(frozen=True)
class Counts:
    """A scrape: its text, and its samples by name and labels."""

    text: str
    samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = field(default_factory=dict)

    def of(self, name: str, **labels: str) -> float:
        """Adds up the samples of a name whose labels are, among others, these."""
        wanted = set(labels.items())
        return sum(value for (its, has), value in self.samples.items() if its == name and wanted <= has)

    @property
    def names(self) -> set[str]:
        """The names of all samples."""
        return {name for name, _ in self.samples}


def parsed(text: str) -> Counts:
    """Parses the text format."""
    from prometheus_client.parser import text_string_to_metric_families

    samples = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    return Counts(text, samples)


async def exchange(address: str, request: bytes) -> bytes:
    """Sends bytes and returns all that comes back: nothing, when the connection is cut off."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(request)
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


async def scrape(address: str) -> Counts:
    """Reads a service's metrics."""
    answer = await exchange(address, b"GET /metrics HTTP/1.1\r\nHost: it\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 "), head
    return parsed(body.decode())


@contextmanager
def counting(service: str = "session") -> Iterator[None]:
    """Counts in this process, as a service that is told to."""
    metrics.turn_on(service)
    try:
        yield
    finally:
        metrics.turn_off()
