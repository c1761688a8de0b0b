"""The commands of the README that CI runs."""

import pytest

from ci.readme_command import marked_block

README = """\
Text.

<!-- ci: test -->
```bash
make test
echo done
```

```
other
```
"""


def test_the_marked_block_is_found_whole() -> None:
    """All lines of the block after the mark, and nothing of others."""
    assert marked_block(README, "test") == "make test\necho done\n"


@pytest.mark.parametrize("text", ["", README + README, README.replace("ci: test", "ci: demo")])
def test_a_mark_that_is_missing_or_twice_is_an_error(text: str) -> None:
    """CI does not pass by finding nothing to run."""
    with pytest.raises(ValueError, match="expected one"):
        marked_block(text, "test")
