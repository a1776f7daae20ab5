"""Instructor with its default settings: objects through tools, one, several and in parts."""

import instructor
import openai

from subject import QUESTION, Ball
from common import BASE, KEY, MODEL, run

client = instructor.from_openai(openai.OpenAI(base_url=f"{BASE}/v1", api_key=KEY))
CHAT = dict(model=MODEL, messages=[{"role": "user", "content": QUESTION}])


def an_object_comes_of_a_tool():
    assert isinstance(client.chat.completions.create(**CHAT, response_model=Ball), Ball)


def an_object_comes_in_parts():
    parts = list(client.chat.completions.create_partial(**CHAT, response_model=Ball))
    Ball.model_validate(parts[-1].model_dump())


def an_object_comes_of_a_schema():
    for mode in [instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS_STRICT]:
        strict = instructor.from_openai(openai.OpenAI(base_url=f"{BASE}/v1", api_key=KEY), mode=mode)
        assert isinstance(strict.chat.completions.create(**CHAT, response_model=Ball), Ball), mode


run(an_object_comes_of_a_tool, an_object_comes_in_parts, an_object_comes_of_a_schema)
