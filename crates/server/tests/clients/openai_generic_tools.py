"""The official OpenAI client with tools of a model that knows no format of calls."""

import json

import openai

from common import BASE, KEY, MODEL, run

client = openai.OpenAI(base_url=f"{BASE}/v1", api_key=KEY, max_retries=0, timeout=60)

PROPERTIES = {
    "weather": {"city": {"enum": ["Rome", "Oslo"]}},
    "throw": {"ball": {"enum": ["red", "blue"]}, "far": {"type": "boolean"}},
}


def parameters(name):
    return {"type": "object", "properties": PROPERTIES[name], "required": list(PROPERTIES[name])}


TOOLS = [
    {"type": "function", "function": {"name": name, "description": name, "parameters": parameters(name)}}
    for name in PROPERTIES
]
CHAT = dict(
    model=MODEL,
    messages=[{"role": "user", "content": "Tom had a ball. Throw it!"}],
    tools=TOOLS,
    max_completion_tokens=100,
)


def chat(**more):
    return client.chat.completions.create(**CHAT | more)


def check(name, arguments):
    arguments = json.loads(arguments)
    assert set(arguments) == set(PROPERTIES[name]), (name, arguments)
    for key, value in arguments.items():
        schema = PROPERTIES[name][key]
        assert value in schema["enum"] if "enum" in schema else isinstance(value, bool), (key, value)


def some_tool_is_called_when_one_must_be():
    for seed in range(3):
        choice = chat(tool_choice="required", seed=seed).choices[0]
        assert choice.finish_reason == "tool_calls" and choice.message.content is None, choice
        (call,) = choice.message.tool_calls
        check(call.function.name, call.function.arguments)


def the_named_tool_is_called():
    for name in PROPERTIES:
        choice = chat(tool_choice={"type": "function", "function": {"name": name}}).choices[0]
        (call,) = choice.message.tool_calls
        assert call.function.name == name
        check(name, call.function.arguments)


def a_streamed_call_is_the_same_call():
    ask = dict(tool_choice="required", seed=4)
    whole = chat(**ask).choices[0].message.tool_calls[0].function
    name, arguments, finish = "", "", None
    for chunk in chat(**ask, stream=True):
        for choice in chunk.choices:
            finish = choice.finish_reason or finish
            for call in choice.delta.tool_calls or []:
                name += call.function.name or ""
                arguments += call.function.arguments or ""
    assert (name, arguments, finish) == (whole.name, whole.arguments, "tool_calls")


def the_model_may_answer_or_call():
    for seed in range(3):
        message = chat(seed=seed).choices[0].message
        assert message.content or message.tool_calls
        for call in message.tool_calls or []:
            check(call.function.name, call.function.arguments)
        parts = [choice.delta.content or "" for chunk in chat(seed=seed, stream=True) for choice in chunk.choices]
        assert "".join(parts) == (message.content or "")


def a_called_tool_can_be_answered():
    message = chat(tool_choice="required").choices[0].message
    answer = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "It flies."}
    reply = chat(messages=CHAT["messages"] + [message, answer], tool_choice="none")
    assert reply.choices[0].message.content and reply.choices[0].message.tool_calls is None


def responses_call_tools_too():
    tools = [
        {"type": "function", "name": name, "parameters": parameters(name), "strict": True} for name in PROPERTIES
    ]
    reply = client.responses.create(
        model=MODEL, input="Throw it!", tools=tools, tool_choice="required", max_output_tokens=100
    )
    (call,) = reply.output
    assert call.type == "function_call"
    check(call.name, call.arguments)


run(
    some_tool_is_called_when_one_must_be,
    the_named_tool_is_called,
    a_streamed_call_is_the_same_call,
    the_model_may_answer_or_call,
    a_called_tool_can_be_answered,
    responses_call_tools_too,
)
