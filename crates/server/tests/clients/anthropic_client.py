"""The official Anthropic client: answers, streams, tools, stop sequences, errors, cancelling."""

import asyncio
import json

import anthropic
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from common import BASE, KEY, MODEL, raises, run

client = anthropic.Anthropic(base_url=BASE, api_key=KEY, max_retries=0, timeout=60)
EVENT = TypeAdapter(RawMessageStreamEvent)

# The client has no arguments for sampling any more; the interface has them still.
ASK = dict(
    model=MODEL,
    max_tokens=24,
    messages=[{"role": "user", "content": "Tell me a story."}],
    extra_body={"temperature": 0},
)
TOOLS = [
    {
        "name": "weather",
        "description": "How warm it is.",
        "input_schema": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    }
]


def inputs(reply):
    """All tokens of the prompt: those from the cache are counted apart."""
    return reply.usage.input_tokens + reply.usage.cache_read_input_tokens


def asking(**more):
    """The question with more fields, known to the client or not."""
    return ASK | {"extra_body": ASK["extra_body"] | more}


def text_of(message):
    return "".join(block.text for block in message.content if block.type == "text")


def an_answer_is_valid():
    reply = client.messages.create(**ASK)
    # The client takes what it gets; the types say what it should be.
    Message.model_validate(reply.to_dict(), strict=False)
    assert reply.stop_reason == "max_tokens" and reply.stop_sequence is None
    assert reply.usage.output_tokens == 24 and reply.usage.input_tokens > 0
    assert text_of(reply)
    assert reply.usage.speculation["steps"] > 0
    assert reply._request_id


def a_stream_is_valid_and_is_the_whole_answer():
    whole = text_of(client.messages.create(**ASK))
    kinds, text = [], ""
    for event in client.messages.create(**ASK, stream=True):
        EVENT.validate_python(event.to_dict())
        kinds.append(event.type)
        if event.type == "content_block_delta":
            text += event.delta.text
    assert text == whole, (text, whole)
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop", kinds


def the_stream_helper_collects_the_answer():
    whole = client.messages.create(**ASK)
    with client.messages.stream(**ASK) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == text_of(whole) == text_of(final)
    assert final.stop_reason == "max_tokens"
    assert final.usage.output_tokens == whole.usage.output_tokens


def a_stop_sequence_is_named():
    whole = text_of(client.messages.create(**ASK | {"max_tokens": 60}))
    stop = whole[20:25]
    ask = ASK | {"max_tokens": 60, "stop_sequences": [stop]}
    reply = client.messages.create(**ask)
    assert reply.stop_reason == "stop_sequence" and reply.stop_sequence == stop
    assert text_of(reply) == whole[: whole.index(stop)]
    with client.messages.stream(**ask) as stream:
        final = stream.get_final_message()
    assert final.stop_sequence == stop and text_of(final) == text_of(reply)


def a_conversation_with_a_tool_goes_on():
    use = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Rome"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "30 degrees"}
    ask = ASK | {
        "system": [{"type": "text", "text": "Be kind."}],
        "tools": TOOLS,
        "tool_choice": {"type": "auto"},
        "messages": [
            {"role": "user", "content": "How warm is it in Rome?"},
            {"role": "assistant", "content": [{"type": "text", "text": "I look."}, use]},
            {"role": "user", "content": [result, {"type": "text", "text": "Well?"}]},
        ],
    }
    reply = client.messages.create(**ask)
    assert reply.role == "assistant"
    again = ask["messages"] + [
        {"role": "assistant", "content": reply.content},
        {"role": "user", "content": "And tomorrow?"},
    ]
    assert inputs(client.messages.create(**ask | {"messages": again})) > inputs(reply)


def a_tool_is_called_when_it_must_be():
    city = {"enum": ["Rome", "Oslo"]}
    schema = {"type": "object", "properties": {"city": city}, "required": ["city"], "additionalProperties": False}
    ask = ASK | {"tools": [TOOLS[0] | {"input_schema": schema}], "max_tokens": 120}
    for choice in [{"type": "any"}, {"type": "tool", "name": "weather"}]:
        ask["tool_choice"] = choice | {"disable_parallel_tool_use": True}
        reply = client.messages.create(**ask)
        Message.model_validate(reply.to_dict(), strict=False)
        assert reply.stop_reason == "tool_use", reply
        use = [block for block in reply.content if block.type == "tool_use"]
        assert [block.name for block in use] == ["weather"]
        assert use[0].input["city"] in city["enum"]
        # The same as a stream: the input comes in pieces of JSON.
        with client.messages.stream(**ask) as stream:
            pieces = [event.delta.partial_json for event in stream if is_piece(event)]
            final = stream.get_final_message()
        assert [block.input for block in final.content if block.type == "tool_use"] == [use[0].input]
        assert json.loads("".join(pieces)) == use[0].input
        answer = {"type": "tool_result", "tool_use_id": use[0].id, "content": "30 degrees"}
        turns = [{"role": "assistant", "content": reply.content}, {"role": "user", "content": [answer]}]
        more = ask | {"messages": ask["messages"] + turns, "tool_choice": {"type": "none"}}
        assert client.messages.create(**more).stop_reason != "tool_use"
    unknown = {"type": "tool", "name": "cook"}
    raises(anthropic.BadRequestError, lambda: client.messages.create(**ask | {"tool_choice": unknown}), "cook")


def is_piece(event):
    return event.type == "content_block_delta" and event.delta.type == "input_json_delta"


def tokens_can_be_counted():
    ask = {name: ASK[name] for name in ["model", "messages"]}
    count = client.messages.count_tokens(**ask).input_tokens
    assert count == inputs(client.messages.create(**ASK))
    assert client.messages.count_tokens(**ask, system="Be kind.").input_tokens > count


def errors_are_the_clients_own():
    def ask(**more):
        return lambda: client.messages.create(**ASK | more)

    error = raises(anthropic.BadRequestError, ask(extra_body={"temperature": -1}), "`temperature` is -1")
    assert error.body["type"] == "error", error.body
    assert error.body["error"]["type"] == "invalid_request_error", error.body
    source = {"type": "url", "url": "http://127.0.0.1/x.png"}
    image = [{"role": "user", "content": [{"type": "image", "source": source}]}]
    raises(anthropic.BadRequestError, ask(messages=image), "messages[0].content[0].type", "image")
    raises(anthropic.BadRequestError, ask(stream=True, max_tokens=0), "at least 1")
    raises(anthropic.NotFoundError, ask(model="claude"), "claude")
    stranger = anthropic.Anthropic(base_url=BASE, api_key="wrong", max_retries=0)
    raises(anthropic.AuthenticationError, lambda: stranger.messages.create(**ASK), "API key")


def a_bearer_token_opens_too():
    bearer = anthropic.Anthropic(base_url=BASE, api_key=None, auth_token=KEY, max_retries=0)
    assert text_of(bearer.messages.create(**ASK))


def our_extensions_are_taken():
    plain = text_of(client.messages.create(**ASK))
    ask = asking(speculation="off", priority=1, deadline_ms=60_000)
    assert text_of(client.messages.create(**ask)) == plain
    ask = asking(speculation="magic")
    raises(anthropic.BadRequestError, lambda: client.messages.create(**ask), "magic")


def a_stream_can_be_left():
    stream = client.messages.create(**asking(ignore_eos=True) | {"max_tokens": 400}, stream=True)
    for event in stream:
        if event.type == "content_block_delta":
            break
    stream.close()
    assert text_of(client.messages.create(**ASK))


def many_can_ask_at_a_time():
    async def ask():
        async with anthropic.AsyncAnthropic(base_url=BASE, api_key=KEY, max_retries=0) as many:

            async def one():
                async with many.messages.stream(**ASK) as stream:
                    return text_of(await stream.get_final_message())

            return await asyncio.gather(*(one() for _ in range(6)))

    assert set(asyncio.run(ask())) == {text_of(client.messages.create(**ASK))}


run(
    an_answer_is_valid,
    a_stream_is_valid_and_is_the_whole_answer,
    the_stream_helper_collects_the_answer,
    a_stop_sequence_is_named,
    a_conversation_with_a_tool_goes_on,
    a_tool_is_called_when_it_must_be,
    tokens_can_be_counted,
    errors_are_the_clients_own,
    a_bearer_token_opens_too,
    our_extensions_are_taken,
    a_stream_can_be_left,
    many_can_ask_at_a_time,
)
