"""The shop's tools. All answers are the same at every run, but for what notes and refunds were made before."""

from __future__ import annotations

import asyncio
import base64
from collections import Counter
from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp_types import CallToolResult, ImageContent, TextContent, ToolAnnotations

ORDERS = {
    "7": "Order 7: two blue kettles, 58.00 EUR, sent on 3 March, arrives on 7 March.",
    "8": "Order 8: one red teapot, 24.50 EUR, paid, not sent yet.",
    "9": "Order 9: six green cups, 31.20 EUR, delivered on 28 February.",
}
WEATHER = ("sunny, 21 °C", "cloudy, 14 °C", "light rain, 11 °C", "snow, -2 °C")
CUSTOMERS = {"ada@shop.example": "c-1", "lin@shop.example": "c-2"}
# One red pixel.
PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
)
LONGEST_WAIT = 600.0

READS = ToolAnnotations(read_only_hint=True, idempotent_hint=True)
# What the model's API refuses in an input schema: a combinator at the root.
EMAIL_OR_ID = {
    "type": "object",
    "anyOf": [
        {"properties": {"email": {"type": "string"}}, "required": ["email"]},
        {"properties": {"customer_id": {"type": "string"}}, "required": ["customer_id"]},
    ],
}


class Shop:
    """Tools, and what really happened: `calls` is the ground truth for tests."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self._notes: list[str] = []
        self._refunds: Counter[str] = Counter()

    def server(self) -> MCPServer:
        """Returns an MCP server with the shop's tools."""
        server = MCPServer("shop", tools=[self._find_customer_tool()], log_level="ERROR")
        for reading in (self.lookup_order, self.weather, self.list_notes):
            server.add_tool(reading, annotations=READS)
        for doing in (self.add_note, self.refund_order, self.wait, self.fail, self.picture, self.stock, self.who_am_i):
            server.add_tool(doing)
        return server

    def _find_customer_tool(self) -> Tool:
        tool = Tool.from_function(self.find_customer, annotations=READS)
        tool.parameters = EMAIL_OR_ID
        return tool

    def _count(self, tool: str, **arguments: Any) -> None:
        self.calls.append({"tool": tool, "arguments": arguments})

    def lookup_order(self, order_id: str) -> str:
        """Tells what is known of an order, such as 7."""
        self._count("lookup_order", order_id=order_id)
        return ORDERS.get(order_id, f"There is no order {order_id}.")

    def weather(self, city: str) -> str:
        """Tells the weather in a city."""
        self._count("weather", city=city)
        return f"{city}: {WEATHER[sum(city.encode()) % len(WEATHER)]}"

    def find_customer(self, email: str = "", customer_id: str = "") -> str:
        """Finds a customer by e-mail address or by id."""
        self._count("find_customer", email=email, customer_id=customer_id)
        for address, number in CUSTOMERS.items():
            if address == email or number == customer_id:
                return f"Customer {number}: {address}"
        return "There is no such customer."

    def add_note(self, text: str) -> str:
        """Takes a note. Doing it twice makes two notes."""
        self._count("add_note", text=text)
        self._notes.append(text)
        return f"Note {len(self._notes)} is taken."

    def list_notes(self) -> str:
        """Lists the notes."""
        self._count("list_notes")
        return "\n".join(f"{number}. {text}" for number, text in enumerate(self._notes, 1)) or "There are no notes."

    def refund_order(self, order_id: str) -> str:
        """Pays an order back. Doing it twice pays twice."""
        self._count("refund_order", order_id=order_id)
        self._refunds[order_id] += 1
        return f"Order {order_id} was paid back, {self._refunds[order_id]} times by now."

    async def wait(self, seconds: float) -> str:
        """Waits for some seconds."""
        self._count("wait", seconds=seconds)
        await asyncio.sleep(min(seconds, LONGEST_WAIT))
        self._count("wait ended", seconds=seconds)
        return f"Waited {seconds:g} s."

    def fail(self) -> str:
        """Always fails."""
        self._count("fail")
        raise ToolError("The warehouse is closed.")

    def picture(self) -> CallToolResult:
        """Shows a picture of the shop."""
        self._count("picture")
        data = base64.b64encode(PICTURE).decode()
        return CallToolResult(
            content=[
                TextContent(type="text", text="The shop, from far away:"),
                ImageContent(type="image", data=data, mime_type="image/png"),
            ]
        )

    def stock(self) -> dict[str, int]:
        """Tells what is in stock, as an object."""
        self._count("stock")
        return {"kettle": 12, "teapot": 0, "cup": 60}

    def who_am_i(self, context: Context) -> str:
        """Repeats the Authorization header that came with the call, as a careless server would."""
        self._count("who_am_i")
        return f"You sent: {(context.headers or {}).get('authorization', 'nothing')}"
