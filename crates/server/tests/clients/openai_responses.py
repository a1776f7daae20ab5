"""The official OpenAI client with the Responses interface: answers, streams, tools, errors, cancelling."""

import asyncio
from typing import Literal

import openai
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from common import BASE, KEY, MODEL, raises, run

client = openai.OpenAI(base_url=f"{BASE}/v1", api_key=KEY, max_retries=0, timeout=60)
EVENT = TypeAdapter(ResponseStreamEvent)

ASK = dict(model=MODEL, input="Tell me a story.", max_output_tokens=24, temperature=0)
TOOLS = [
    {
        "type": "function",
        "name": "weather",
        "description": "How warm it is.",
        "strict": False,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    }
]


def a_response_is_valid():
    reply = client.responses.create(**ASK, instructions="Be kind.", metadata={"a": "b"}, tools=TOOLS)
    # The client takes what it gets; the types say what it should be.
    Response.model_validate(reply.to_dict())
    assert reply.status == "incomplete" and reply.incomplete_details.reason == "max_output_tokens"
    assert reply.output_text
    assert reply.metadata == {"a": "b"} and reply.instructions == "Be kind."
    assert reply.tools[0].name == "weather"
    assert reply.usage.output_tokens == 24
    assert reply.usage.total_tokens == reply.usage.input_tokens + 24
    assert reply.usage.speculation["steps"] > 0


def a_stream_is_valid_and_is_the_whole_response():
    whole = client.responses.create(**ASK).output_text
    kinds, text = [], ""
    for number, event in enumerate(client.responses.create(**ASK, stream=True)):
        EVENT.validate_python(event.to_dict())
        assert event.sequence_number == number
        kinds.append(event.type)
        if event.type == "response.output_text.delta":
            text += event.delta
        if event.type == "response.output_text.done":
            assert event.text == whole
    assert text == whole, (text, whole)
    assert kinds[0] == "response.created" and kinds[-1] == "response.incomplete", kinds


def the_stream_helper_collects_the_response():
    # The helper only knows the end of responses that were not cut off.
    ask = {name: ASK[name] for name in ["model", "input", "temperature"]}
    whole = client.responses.create(**ask)
    assert whole.status == "completed", whole.status
    with client.responses.stream(**ask) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == whole.output_text == final.output_text
    assert final.usage.output_tokens == whole.usage.output_tokens


def a_conversation_with_a_tool_goes_on():
    items = [
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": [{"type": "input_text", "text": "How warm is it in Rome?"}]},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Rome"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "30 degrees"},
    ]
    ask = ASK | {"tools": TOOLS, "tool_choice": "auto", "parallel_tool_calls": False}
    reply = client.responses.create(**ask | {"input": items})
    assert reply.output[0].type == "message" and not reply.parallel_tool_calls
    items += [item.to_dict() for item in reply.output]
    items.append({"role": "user", "content": "And tomorrow?"})
    longer = client.responses.create(**ask | {"input": items})
    assert longer.usage.input_tokens > reply.usage.input_tokens


class Fruit(BaseModel):
    colour: Literal["red", "green"]
    ripe: bool


def a_class_can_be_asked_for():
    ask = ASK | {"max_output_tokens": 100}
    whole = client.responses.parse(**ask, text_format=Fruit).output_parsed
    assert isinstance(whole, Fruit), whole
    with client.responses.stream(**ask, text_format=Fruit) as stream:
        assert stream.get_final_response().output_parsed == whole
    talk = {"model": ask["model"], "messages": [{"role": "user", "content": "Which?"}], "max_tokens": 100}
    assert isinstance(client.chat.completions.parse(**talk, response_format=Fruit).choices[0].message.parsed, Fruit)


def a_tool_can_be_insisted_on():
    schema = Fruit.model_json_schema() | {"additionalProperties": False}
    tool = {"type": "function", "name": "eat", "parameters": schema, "strict": True}
    for choice in ["required", {"type": "function", "name": "eat"}]:
        ask = ASK | {"max_output_tokens": 200, "tools": [tool], "tool_choice": choice}
        [call] = client.responses.create(**ask, parallel_tool_calls=False).output
        assert call.type == "function_call" and call.name == "eat", call
        Fruit.model_validate_json(call.arguments)


def errors_are_the_clients_own():
    def ask(**more):
        return lambda: client.responses.create(**ASK | more)

    error = raises(openai.BadRequestError, ask(temperature=-1), "`temperature` is -1")
    assert error.param == "temperature", error.body
    raises(openai.BadRequestError, ask(previous_response_id="resp_1"), "not stored")
    raises(openai.BadRequestError, ask(stream=True, max_output_tokens=0), "at least 1")
    image = [{"role": "user", "content": [{"type": "input_image", "image_url": "data:x", "detail": "low"}]}]
    raises(openai.BadRequestError, ask(input=image), "input[0].content[0].type")
    raises(openai.BadRequestError, ask(tools=[{"type": "web_search"}]), "tools[0].type")
    raises(openai.NotFoundError, ask(model="gpt-9"), "gpt-9")
    stranger = openai.OpenAI(base_url=f"{BASE}/v1", api_key="wrong", max_retries=0)
    raises(openai.AuthenticationError, lambda: stranger.responses.create(**ASK), "API key")


def our_extensions_are_taken():
    plain = client.responses.create(**ASK).output_text
    more = {"speculation": "off", "priority": 1, "deadline_ms": 60_000}
    assert client.responses.create(**ASK, extra_body=more).output_text == plain
    more = {"speculation": "magic"}
    raises(openai.BadRequestError, lambda: client.responses.create(**ASK, extra_body=more), "magic")


def a_stream_can_be_left():
    more = {"ignore_eos": True}
    stream = client.responses.create(**ASK | {"max_output_tokens": 400}, stream=True, extra_body=more)
    for event in stream:
        if event.type == "response.output_text.delta":
            break
    stream.close()
    assert client.responses.create(**ASK).output_text


def many_can_ask_at_a_time():
    async def ask():
        async with openai.AsyncOpenAI(base_url=f"{BASE}/v1", api_key=KEY, max_retries=0) as many:

            async def one():
                return (await many.responses.create(**ASK)).output_text

            return await asyncio.gather(*(one() for _ in range(6)))

    assert set(asyncio.run(ask())) == {client.responses.create(**ASK).output_text}


run(
    a_response_is_valid,
    a_stream_is_valid_and_is_the_whole_response,
    the_stream_helper_collects_the_response,
    a_conversation_with_a_tool_goes_on,
    a_class_can_be_asked_for,
    a_tool_can_be_insisted_on,
    errors_are_the_clients_own,
    our_extensions_are_taken,
    a_stream_can_be_left,
    many_can_ask_at_a_time,
)
