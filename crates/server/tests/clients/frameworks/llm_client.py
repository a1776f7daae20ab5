"""Simon Willison's `llm`, with the server as one of its models: texts, streams, conversations and objects."""

import json
import os
import pathlib
import tempfile

from subject import QUESTION, Ball
from common import BASE, KEY, MODEL, run

# It reads its models when it is imported.
folder = pathlib.Path(tempfile.mkdtemp())
os.environ["LLM_USER_PATH"] = str(folder)
model = dict(
    model_id="paceline", model_name=MODEL, api_base=f"{BASE}/v1", api_key_name="paceline", supports_schema=True
)
# JSON is YAML.
(folder / "extra-openai-models.yaml").write_text(json.dumps([model]))
(folder / "keys.json").write_text(json.dumps({"paceline": KEY}))

import llm  # noqa: E402


def subject():
    return llm.get_model("paceline")


def a_text_comes_whole_and_in_pieces():
    options = dict(max_tokens=16, temperature=0)
    whole = subject().prompt(QUESTION, stream=False, **options)
    pieces = list(subject().prompt(QUESTION, stream=True, **options))
    assert whole.text() and len(pieces) > 1
    assert "".join(pieces) == whole.text()
    assert 0 < whole.usage().output <= 16


def a_conversation_goes_on():
    conversation = subject().conversation()
    first = conversation.prompt(QUESTION, max_tokens=8).text()
    second = conversation.prompt("And then?", max_tokens=8).text()
    assert first and second and len(conversation.responses) == 2


def an_object_has_its_form():
    Ball.model_validate_json(subject().prompt(QUESTION, schema=Ball, stream=False).text())


run(a_text_comes_whole_and_in_pieces, a_conversation_goes_on, an_object_has_its_form)
