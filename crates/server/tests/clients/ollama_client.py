"""Ollama's own client: chat and generate, whole and as they come, tools, schemas, vectors, and what it lists."""

import json
import urllib.request
from typing import Literal

import ollama
from pydantic import BaseModel

from common import BASE, KEY, MODEL, raises, run

client = ollama.Client(host=BASE, headers={"Authorization": f"Bearer {KEY}"})
MESSAGES = [{"role": "user", "content": "Tell me about a fox."}]
SHORT = {"num_predict": 16, "temperature": 0}


class Ball(BaseModel):
    colour: Literal["red", "blue"]


def throw(ball: str) -> str:
    """Throws a ball.

    Args:
        ball: Which one.
    """
    return f"threw {ball}"


def a_stream_is_the_whole_in_pieces():
    whole = client.chat(MODEL, MESSAGES, options=SHORT)
    parts = list(client.chat(MODEL, MESSAGES, options=SHORT, stream=True))
    assert whole.message.content and whole.done and whole.eval_count == 16
    assert "".join(part.message.content for part in parts) == whole.message.content
    assert parts[-1].done_reason == "length" and not parts[0].done


def generating_goes_on_from_a_context():
    whole = client.generate(MODEL, "Once upon a time", options=SHORT, raw=True)
    parts = list(client.generate(MODEL, "Once upon a time", options=SHORT, raw=True, stream=True))
    assert whole.response and "".join(part.response for part in parts) == whole.response
    assert client.generate(MODEL, "And then", options=SHORT, context=whole.context).response is not None
    assert client.generate(MODEL, "").done_reason == "load"


def an_answer_has_the_form_that_is_asked_for():
    reply = client.chat(MODEL, MESSAGES, format=Ball.model_json_schema(), options={"num_predict": 40})
    assert Ball.model_validate_json(reply.message.content).colour in ("red", "blue")
    reply = client.generate(MODEL, "A ball:", format="json", options={"num_predict": 200, "temperature": 0.5, "seed": 1})
    assert isinstance(reply.response, str)


def tools_are_taken_as_functions():
    reply = client.chat(MODEL, MESSAGES, tools=[throw], options=SHORT, think=False, keep_alive="5m")
    talk = MESSAGES + [reply.message, {"role": "tool", "tool_name": "throw", "content": throw("red")}]
    assert client.chat(MODEL, talk, tools=[throw], options=SHORT).done


def context_length():
    """What the server says of its model to other clients."""
    request = urllib.request.Request(f"{BASE}/v1/models", headers={"Authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)["data"][0]["max_model_len"]


def the_model_is_listed():
    assert MODEL in [model.model for model in client.list().models]
    assert client.ps().models[0].context_length == context_length()
    shown = client.show(MODEL)
    assert "completion" in shown.capabilities and shown.template
    error = raises(ollama.ResponseError, lambda: client.chat("nobody", MESSAGES), "nobody")
    assert error.status_code == 404


def texts_become_vectors():
    reply = client.embed(MODEL, ["A fox", "A dog"])
    assert len(reply.embeddings) == 2 and abs(sum(x * x for x in reply.embeddings[0]) - 1) < 1e-3


run(
    a_stream_is_the_whole_in_pieces,
    generating_goes_on_from_a_context,
    an_answer_has_the_form_that_is_asked_for,
    tools_are_taken_as_functions,
    the_model_is_listed,
    texts_become_vectors,
)
