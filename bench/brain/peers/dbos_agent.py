"""The agent on DBOS, as its documentation has it: a workflow whose steps ask the model and run the tool.

`python dbos_agent.py FOLDER MODEL_URL` starts a turn for each line of its input and says so once DBOS has it. What
was not finished when it died goes on when it is started again: DBOS does that in `launch`.
"""

import subprocess
import sys
import time
from pathlib import Path

from anthropic import Anthropic
from dbos import DBOS

folder, url = Path(sys.argv[1]), sys.argv[2]
client = Anthropic(base_url=url, api_key="any", max_retries=0)
DBOS(config={"name": "bench", "system_database_url": f"sqlite:///{folder}/dbos.sqlite", "log_level": "WARNING"})


@DBOS.step()
def ask(messages):
    answer = client.messages.create(model="claude-opus-4-8", max_tokens=1024, messages=messages)
    return [block.model_dump() for block in answer.content]


@DBOS.step()
def run(command):
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True).stdout or "(no output)"


@DBOS.step()
def answered(number):
    with (folder / "answers").open("a") as file:
        file.write(f"{number} {time.monotonic_ns()}\n")


@DBOS.workflow()
def turn(number, text):
    messages = [{"role": "user", "content": text}]
    while True:
        content = ask(messages)
        calls = [block for block in content if block["type"] == "tool_use"]
        if not calls:
            return answered(number)
        results = [
            {"type": "tool_result", "tool_use_id": call["id"], "content": run(call["input"]["command"])}
            for call in calls
        ]
        messages += [{"role": "assistant", "content": content}, {"role": "user", "content": results}]


DBOS.launch()
print("ready", flush=True)
for line in sys.stdin:
    number, _, text = line.strip().partition(" ")
    DBOS.start_workflow(turn, number, text)
    print(number, flush=True)
