"""The official OpenAI client with replies of a given form: JSON schemas, parsed objects, forced tools."""

import json
from typing import Literal

import openai
from pydantic import BaseModel, Field

from common import BASE, KEY, MODEL, raises, run

client = openai.OpenAI(base_url=f"{BASE}/v1", api_key=KEY, max_retries=0, timeout=60)


class Ball(BaseModel):
    """Small enough that every text of it ends."""

    colour: Literal["red", "green", "blue"]
    size: int = Field(ge=0, le=9)
    new: bool


SCHEMA = {
    "type": "object",
    "properties": {
        "colour": {"enum": ["red", "green", "blue"]},
        "size": {"type": "integer", "minimum": 0, "maximum": 9},
        "new": {"type": "boolean"},
    },
    "required": ["colour", "size", "new"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "ball", "strict": True, "schema": SCHEMA}}
CHAT = dict(
    model=MODEL,
    messages=[{"role": "user", "content": "Tom had a ball. What was it like?"}],
    max_completion_tokens=120,
    temperature=0,
)


def tool(name, **properties):
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}


TOOLS = [
    tool("weather", city={"enum": ["Rome", "Oslo"]}),
    tool("throw", ball={"enum": ["red", "blue"]}, far={"type": "boolean"}),
]
ARGUMENTS = {"weather": {"city"}, "throw": {"ball", "far"}}


def chat(**more):
    return client.chat.completions.create(**CHAT | more)


def check_call(call):
    assert call.type == "function" and call.id
    assert set(json.loads(call.function.arguments)) == ARGUMENTS[call.function.name], call


def a_schema_is_kept():
    for more in [{}, {"temperature": 1.5, "seed": 3}, {"extra_body": {"speculation": "off"}}]:
        choice = chat(response_format=FORMAT, **more).choices[0]
        assert choice.finish_reason == "stop"
        Ball.model_validate_json(choice.message.content)


def a_stream_is_the_same_json():
    whole = chat(response_format=FORMAT).choices[0].message.content
    parts = [
        choice.delta.content or ""
        for chunk in chat(response_format=FORMAT, stream=True)
        for choice in chunk.choices
    ]
    assert "".join(parts) == whole


def every_choice_keeps_it_and_has_log_probabilities():
    reply = chat(response_format=FORMAT, n=3, temperature=1.2, seed=5, logprobs=True, top_logprobs=1)
    for choice in reply.choices:
        Ball.model_validate_json(choice.message.content)
        assert "".join(token.token for token in choice.logprobs.content) == choice.message.content


def the_parser_makes_an_object():
    message = client.chat.completions.parse(**CHAT, response_format=Ball).choices[0].message
    assert isinstance(message.parsed, Ball) and message.refusal is None
    with client.chat.completions.stream(**CHAT, response_format=Ball) as stream:
        for _ in stream:
            pass
        assert stream.get_final_completion().choices[0].message.parsed == message.parsed


def a_response_keeps_a_schema():
    ask = dict(model=MODEL, input="Tom had a ball.", max_output_tokens=120, temperature=0)
    text = {"format": {"type": "json_schema", "name": "ball", "schema": SCHEMA, "strict": True}}
    Ball.model_validate_json(client.responses.create(**ask, text=text).output_text)
    assert isinstance(client.responses.parse(**ask, text_format=Ball).output_parsed, Ball)


def any_json_object_will_do():
    choice = chat(response_format={"type": "json_object"}).choices[0]
    assert choice.message.content.lstrip().startswith("{")
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content), dict)


def some_tool_is_called_when_one_must_be():
    choice = chat(tools=TOOLS, tool_choice="required").choices[0]
    assert choice.finish_reason == "tool_calls", choice
    for call in choice.message.tool_calls:
        check_call(call)


def the_named_tool_is_called_once():
    for name in ARGUMENTS:
        named = {"type": "function", "function": {"name": name}}
        choice = chat(tools=TOOLS, tool_choice=named, parallel_tool_calls=False).choices[0]
        assert [call.function.name for call in choice.message.tool_calls] == [name]
        check_call(choice.message.tool_calls[0])


def a_streamed_call_is_the_same_call():
    ask = dict(tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
    whole = chat(**ask).choices[0].message.tool_calls[0].function
    name, arguments, finish = "", "", None
    for chunk in chat(**ask, stream=True):
        for choice in chunk.choices:
            finish = choice.finish_reason or finish
            for call in choice.delta.tool_calls or []:
                assert call.index == 0
                name += call.function.name or ""
                arguments += call.function.arguments or ""
    assert (name, arguments, finish) == (whole.name, whole.arguments, "tool_calls")


def a_called_tool_can_be_answered():
    ask = dict(tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
    message = chat(**ask).choices[0].message
    answer = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "30 degrees"}
    reply = chat(messages=CHAT["messages"] + [message, answer], tools=TOOLS, tool_choice="none")
    assert reply.choices[0].message.tool_calls is None


def what_cannot_be_kept_is_refused():
    def asking(schema):
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        return lambda: chat(response_format=form)

    raises(openai.BadRequestError, asking({"type": "no such type"}), "response_format")
    raises(openai.BadRequestError, asking({"$ref": "#/nowhere"}), "response_format")
    raises(openai.BadRequestError, lambda: chat(tool_choice="required"), "tool")
    named = {"type": "function", "function": {"name": "cook"}}
    raises(openai.BadRequestError, lambda: chat(tools=TOOLS, tool_choice=named), "cook")


run(
    a_schema_is_kept,
    a_stream_is_the_same_json,
    every_choice_keeps_it_and_has_log_probabilities,
    the_parser_makes_an_object,
    a_response_keeps_a_schema,
    any_json_object_will_do,
    some_tool_is_called_when_one_must_be,
    the_named_tool_is_called_once,
    a_streamed_call_is_the_same_call,
    a_called_tool_can_be_answered,
    what_cannot_be_kept_is_refused,
)
