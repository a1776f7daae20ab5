"""LiteLLM with its default settings: texts, streams, tools, objects and the errors it tells apart."""

import json

import litellm

from subject import QUESTION, Ball
from common import BASE, KEY, MODEL, raises, run

SERVER = dict(api_base=f"{BASE}/v1", api_key=KEY)
MESSAGES = [{"role": "user", "content": QUESTION}]
TOOL = {
    "type": "function",
    "function": {"name": "throw", "description": "Throws a ball", "parameters": Ball.model_json_schema()},
}


def chat(**more):
    # As OpenAI's interface, and as the one of a vLLM server.
    for provider in ("openai", "hosted_vllm"):
        yield litellm.completion(**{"model": f"{provider}/{MODEL}", "messages": MESSAGES} | SERVER | more)


def a_text_comes_whole_and_in_pieces():
    for whole, stream in zip(chat(max_tokens=16, temperature=0), chat(max_tokens=16, temperature=0, stream=True)):
        text = whole.choices[0].message.content
        assert text and whole.usage.completion_tokens <= 16
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == text


def a_prompt_goes_on():
    reply = litellm.text_completion(
        model=f"text-completion-openai/{MODEL}", prompt="Once upon a time", max_tokens=8, **SERVER
    )
    assert reply.choices[0].text


def an_object_has_its_form():
    for reply in chat(response_format=Ball):
        Ball.model_validate_json(reply.choices[0].message.content)


def a_tool_that_must_be_called_is_called():
    for choice in ("required", {"type": "function", "function": {"name": "throw"}}):
        for reply in chat(tools=[TOOL], tool_choice=choice):
            call = reply.choices[0].message.tool_calls[0].function
            assert call.name == "throw"
            Ball.model_validate(json.loads(call.arguments))


def a_prompt_too_long_is_told_from_other_errors():
    long = [{"role": "user", "content": "A fox ran. " * 20_000}]
    raises(litellm.ContextWindowExceededError, lambda: list(chat(messages=long)), "maximum context length")
    raises(litellm.BadRequestError, lambda: list(chat(temperature=-1)), "temperature")


def a_text_becomes_a_vector():
    reply = litellm.embedding(model=f"openai/{MODEL}", input=["A fox."], encoding_format="float", **SERVER)
    assert len(reply.data[0]["embedding"]) > 8


run(
    a_text_comes_whole_and_in_pieces,
    a_prompt_goes_on,
    an_object_has_its_form,
    a_tool_that_must_be_called_is_called,
    a_prompt_too_long_is_told_from_other_errors,
    a_text_becomes_a_vector,
)
