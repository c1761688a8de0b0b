"""The command line of a hand that is a program of its own."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from handmesh.hand.crew import Crew
from handmesh.hand.place import Place
from handmesh.hand.refusals import HandRefused
from handmesh.hand.tools import Hand

TOKEN = "HANDMESH_HAND_TOKEN"


def run(hand: Hand, arguments: Sequence[str] | None = None) -> None:
    """Serves a hand as its command line says, until SIGTERM or Ctrl-C. A second one ends it at once."""
    place = place_of(arguments, os.environ, hand.description)  # noqa: TID251 - a program of its own reads its own
    sys.exit(serve(hand, place))


def serve(hand: Hand, place: Place) -> int:
    """Serves a hand, and returns the exit code: 0 when it was stopped, 1 when the mesh refuses it."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    try:
        asyncio.run(until_stopped(hand, place))
    except HandRefused as refused:
        sys.stderr.write(f"{refused}\n")
        return 1
    return 0


def place_of(arguments: Sequence[str] | None, environment: Mapping[str, str], description: str) -> Place:
    """Reads the arguments: --connect, --name, --token, --token-file, --ca-file, --seat, --label."""
    parser = argparse.ArgumentParser(description=description or None)
    where = "the mesh's sandbox service; its replicas, with commas"
    parser.add_argument("--connect", required=True, metavar="HOST:PORT", help=where)
    parser.add_argument("--name", required=True, help="the hand's name, that the token is for")
    parser.add_argument("--token", help=f"the token; better in {TOKEN}, for others see what a command is told")
    parser.add_argument("--token-file", type=Path, help="the file that the token is in")
    parser.add_argument("--ca-file", type=Path, help="PEM of the authority that signed the mesh's certificate")
    parser.add_argument("--seat", default="", help="which of the hand's workers this is, if it always is the same")
    parser.add_argument("--label", action="append", default=[], metavar="KEY=VALUE", help="what it says of itself")
    given = parser.parse_args(arguments)
    token = given.token or (given.token_file.read_text().strip() if given.token_file else environment.get(TOKEN, ""))
    if not token:
        parser.error(f"give a token: --token, --token-file or {TOKEN}; `handmesh hand token NAME` makes one")
    labels = dict(label.partition("=")[::2] for label in given.label)
    return Place(given.connect, given.name, token, given.ca_file, given.seat, labels)


async def until_stopped(hand: Hand, place: Place) -> None:
    """Serves; the first SIGTERM or Ctrl-C drains, the second ends."""
    worker = Crew(hand, place)
    running = asyncio.create_task(worker.run())

    def stop() -> None:
        if worker.draining:
            running.cancel()
        worker.drain()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    try:
        await asyncio.wait([running])
        if not running.cancelled():
            running.result()
    finally:
        await worker.close()
