"""Writes the table of metrics in docs/metrics.md from what the services declare. A test holds the two equal.

python ci/metrics.py           writes the table
python ci/metrics.py --check   exits with 1 when it is not what it would write
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

from services.kit import metrics

PAGE = Path(__file__).resolve().parents[1] / "docs" / "metrics.md"
BEGIN, END = "<!-- ci/metrics.py writes what follows -->\n", "<!-- up to here -->\n"
MODULES = {
    "Every service": ("services.kit.metered", "services.kit.metrics_listener", "services.kit.metrics"),
    "Sandbox service and vault proxy": ("services.kit.grants",),
    "Session service": ("services.session.counting",),
    "Harness": ("services.harness.counting",),
    "Sandbox service": ("services.sandbox.counting",),
    "Vault proxy": ("services.vault_proxy.counting",),
}
MOST_SHOWN = 12  # values of a label


def by_part() -> dict[str, list[metrics.Instrument]]:
    """Returns what each part declares, by the module that does."""
    found: dict[str, list[metrics.Instrument]] = {}
    for part, names in MODULES.items():
        modules = [importlib.import_module(name) for name in names]
        mine = {id(value) for module in modules for value in vars(module).values()}
        found[part] = [each for each in metrics.declared.values() if id(each) in mine]
    return found


def table() -> str:
    """Writes the tables."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    for part, instruments in by_part().items():
        yield f"\n### {part}\n"
        yield "| metric | kind | labels | meaning |"
        yield "|---|---|---|---|"
        for each in instruments:
            labels = "<br>".join(_label(label) for label in each.labels)
            yield f"| `{each.name}` | {each.kind} | {labels} | {each.meaning} |"
    yield ""


def _label(label: metrics.Label) -> str:
    values = [value for value in label.values if value != metrics.OTHER]
    if not values:
        return f"`{label.name}`: the operator's"
    shown = ", ".join(values[:MOST_SHOWN]) + (f", ... ({len(values)})" if len(values) > MOST_SHOWN else "")
    return f"`{label.name}`: {shown}"


def written() -> str:
    """Returns the page as it should be."""
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + table() + END + rest.partition(END)[2]


def main() -> None:
    page = written()
    if PAGE.read_text() == page:
        return
    if "--check" in sys.argv:
        sys.exit("docs/metrics.md is stale: run python ci/metrics.py")
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
