"""What models cost: the built-in table, the operator's file, and what happens without a price."""

from __future__ import annotations

import os
import subprocess
import sys
import typing
from dataclasses import replace
from pathlib import Path

import pytest

from handmesh.session.v1.config_pb2 import Budgets, SessionConfig
from services.harness.adapters.anthropic import AnthropicModel
from services.harness.loops.messages import make
from services.harness.prices import BUILT_IN, Prices, PricesError, with_prices
from services.harness.usage import Usage
from tests.support.harness_ports import MemoryLog, ScriptedModel, Told, message, ports, said

ROOT = Path(__file__).parents[2]
MILLION = 1_000_000
FILE = """
["m"]
input = 1
output = 2.5
cache_write = 0.5
cache_read = 0
[claude-sonnet-4-5]
input = 0.000001
output = 0
cache_write = 0
cache_read = 0
"""


def test_every_class_of_tokens_has_its_price() -> None:
    """A million tokens of each class cost what the table says; a dated name is its model's."""
    cost = BUILT_IN.cost_micros
    assert cost("claude-sonnet-4-5", Usage(input=MILLION)) == 3_000_000
    assert cost("claude-sonnet-4-5", Usage(output=MILLION)) == 15_000_000
    assert cost("claude-sonnet-4-5", Usage(cache_creation=MILLION)) == 3_750_000
    assert cost("claude-sonnet-4-5-20250929", Usage(cache_read=MILLION)) == 300_000
    assert cost("claude-sonnet-4-5", Usage(output=1)) == 15
    assert cost("claude-sonnet-4-5", Usage(cache_read=1)) == 1  # rounded up


def test_a_long_prompt_has_its_own_price_where_the_model_has_one() -> None:
    """The prompt is what was read in, cached or not."""
    assert BUILT_IN.cost_micros("claude-haiku-5-5", Usage(input=100_000)) == 10_000
    assert BUILT_IN.cost_micros("claude-haiku-5-5", Usage(input=50_000, cache_read=50_001)) == 25_000 + 2_501


def test_a_model_that_is_not_in_the_table_has_no_price() -> None:
    """A later version of a known one neither: its price may be another."""
    assert BUILT_IN.cost_micros("claude-sonnet-4-9", Usage(input=1)) is None
    assert BUILT_IN.cost_micros("claude-sonnet-4-5-x", Usage(input=1)) is None
    assert BUILT_IN.cost_micros("another", Usage(input=1)) is None


async def test_the_default_model_has_a_price() -> None:
    """A session that names no model is asked with the newest; so is a session with a limit of cost."""
    assert BUILT_IN.profile_of(await AnthropicModel(None, None, lambda: 0.0).newest()) is not None


def test_prices_are_those_of_models_that_there_are() -> None:
    """A name with a slip in it would never be found."""
    from anthropic.types import model_param

    known = {name for each in typing.get_args(model_param.ModelParam) for name in typing.get_args(each)}
    assert set(BUILT_IN.profiles) - known == set()


def test_an_operators_file_adds_and_takes_the_place() -> None:
    """What it does not name stays as it was; free is a price too."""
    prices = with_prices(FILE)
    assert prices.cost_micros("m", Usage(MILLION, MILLION, MILLION, MILLION)) == 4_000_000
    assert prices.cost_micros("claude-sonnet-4-5-20250929", Usage(input=MILLION)) == 1
    assert prices.cost_micros("claude-opus-5", Usage(input=MILLION)) == 5_000_000
    dated = with_prices(FILE.replace('"m"', '"claude-opus-5-20261231"'))
    assert dated.cost_micros("claude-opus-5-20261231", Usage(input=MILLION)) == 1_000_000
    assert dated.cost_micros("claude-opus-5", Usage(input=MILLION)) == 5_000_000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[m", "is no TOML"),
        ("m = 7", "m = 7: expected a table"),
        ("[m]\ninput = 1", "m.output is missing"),
        (FILE.replace("2.5", "-1"), "m.output = -1: expected US dollars"),
        (FILE.replace("2.5", "true"), "m.output = True: expected"),
        (FILE.replace("2.5", "nan"), "m.output = nan: expected"),
        (FILE.replace("2.5", '"2"'), "m.output = '2': expected"),
        (FILE.replace("2.5", "2\ncached = 1"), "m.cached: expected one of input, output, cache_write, cache_read"),
    ],
)
def test_a_wrong_file_is_refused_with_key_and_value(text: str, said: str) -> None:
    """And what was expected."""
    with pytest.raises(PricesError, match=said.replace("[", r"\[").replace(".", r"\.")):
        with_prices(text)


def test_all_that_is_wrong_is_said_at_once() -> None:
    """One line for each."""
    with pytest.raises(PricesError) as told:
        with_prices("[a]\ninput = -1\n[b]\n")
    assert len(str(told.value).splitlines()) == 4 + 4


def test_a_harness_does_not_start_with_a_wrong_file(tmp_path: Path) -> None:
    """It says which file, and what is wrong in it."""
    (tmp_path / "prices.toml").write_text("[m]\ninput = 1\n")
    addresses = {f"HANDMESH_{name}_ADDRESS": "127.0.0.1:1" for name in ("SESSION", "SANDBOX", "VAULT_PROXY")}
    told = {
        "HANDMESH_LISTEN": "127.0.0.1:0",
        "HANDMESH_TLS_DIR": str(tmp_path),
        "HANDMESH_MODEL_PRICES_FILE": str(tmp_path / "prices.toml"),
    }
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **addresses, **told}
    program = [sys.executable, "-m", "services.harness"]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "prices.toml: m.output is missing" in done.stderr
    assert "Traceback" not in done.stderr


async def turn(model: str, prices: Prices = BUILT_IN, **limit: int) -> tuple[MemoryLog, ScriptedModel]:
    """Plays a turn of a session under a budget; the answer says that it is of `m`."""
    log = MemoryLog(SessionConfig(model=model, budgets=Budgets(**limit)))
    answers = ScriptedModel(said(), said())
    await make().run(log, replace(ports(answers), prices=prices), "test", Told())
    return log, answers


async def test_without_a_price_a_limit_of_cost_is_an_error_that_says_what_to_do() -> None:
    """Nothing is asked, the turn ends as FAILED, the session lives: with the price in the file the next turn is."""
    log, model = await turn("m", max_cost_micros=1_000_000)
    assert model.requests == []
    (error,) = log.only("error_raised")
    assert (error.reason, error.retryable) == ("MODEL_PRICE_UNKNOWN", False)
    assert "the price of m is not known" in error.message
    assert "HANDMESH_MODEL_PRICES_FILE" in error.message
    await log.add(message("again", "m2"))
    await make().run(log, replace(ports(model), prices=with_prices(FILE)), "test", Told())
    assert log.kinds()[-2:] == ["model_replied", "turn_ended"]
    assert log.only("model_replied")[0].cost_micros == 3  # a token of output at 2.5


async def test_without_a_limit_of_cost_a_price_is_not_needed() -> None:
    """The log has no cost of such an answer, which is not the same as none."""
    log, _ = await turn("m", max_tokens=1_000)
    assert not log.only("model_replied")[0].HasField("cost_micros")
    log, _ = await turn("m", with_prices(FILE.replace("2.5", "0")))
    assert log.only("model_replied")[0].HasField("cost_micros")


async def test_an_answer_of_a_model_that_nobody_knows_costs_what_the_asked_one_does() -> None:
    """The API may name a model otherwise than it was asked for."""
    log, _ = await turn("claude-sonnet-4-5", max_cost_micros=1_000_000)
    assert log.only("model_replied")[0].cost_micros == 15
