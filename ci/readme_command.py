"""Prints the commands of README.md that are marked for CI: the fenced block right after `<!-- ci: NAME -->`.

Called as `python3 ci/readme_command.py test`.
"""

import re
import sys
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"


def marked_block(text: str, name: str) -> str:
    """Returns the lines of the one block marked `name`. Raises ValueError when there is none, or more than one."""
    blocks = re.findall(rf"<!-- ci: {re.escape(name)} -->\n+```[a-z]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    if len(blocks) != 1:
        raise ValueError(f"{len(blocks)} blocks are marked <!-- ci: {name} -->, expected one")
    block: str = blocks[0]
    return block


if __name__ == "__main__":
    sys.stdout.write(marked_block(README.read_text(), sys.argv[1]))
