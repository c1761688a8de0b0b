"""Hands in Python that dial out: say what the tools are, and serve them to a mesh from anywhere.

    from handmesh.hand import Hand, tool

    class Lamp(Hand):
        "The lamp on my desk."

        on = False

        @tool
        def switch(self, on: bool) -> str:
            "Switches the lamp."
            self.on = on
            return f"the lamp is {'on' if on else 'off'}"

    Lamp().run()

`docs/hands.md` teaches the rest.
"""

from handmesh.hand.answers import Image, Result, ToolError
from handmesh.hand.call import Call
from handmesh.hand.crew import Crew, serve
from handmesh.hand.place import Place
from handmesh.hand.refusals import HandRefused
from handmesh.hand.schemas import Tool
from handmesh.hand.tools import Hand, hand_of, tool
from handmesh.hand.worker import Worker

__all__ = [
    "Call",
    "Crew",
    "Hand",
    "HandRefused",
    "Image",
    "Place",
    "Result",
    "Tool",
    "ToolError",
    "Worker",
    "hand_of",
    "serve",
    "tool",
]
