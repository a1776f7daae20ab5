"""The official OpenAI client with chat and completions: answers, streams, choices, tools, errors, cancelling."""

import asyncio

import openai
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from common import BASE, KEY, MODEL, raises, run

client = openai.OpenAI(base_url=f"{BASE}/v1", api_key=KEY, max_retries=0, timeout=60)

CHAT = dict(
    model=MODEL,
    messages=[
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Tell me a story."},
    ],
    max_completion_tokens=24,
    temperature=0,
)
TEXT = dict(model=MODEL, prompt="Once upon a time", max_tokens=24, temperature=0)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "How warm it is.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]


def chat(**more):
    return client.chat.completions.create(**CHAT | more)


def complete(**more):
    return client.completions.create(**TEXT | more)


def content(reply, index=0):
    return reply.choices[index].message.content


def models_are_listed():
    listed = client.models.list()
    assert MODEL in [model.id for model in listed.data]
    assert client.models.retrieve(MODEL).id == MODEL
    raises(openai.NotFoundError, lambda: client.models.retrieve("gpt-9"), "gpt-9")


def an_answer_is_valid():
    reply = chat()
    # The client takes what it gets; the types say what it should be.
    ChatCompletion.model_validate(reply.to_dict())
    assert reply.choices[0].finish_reason == "length" and content(reply)
    assert reply.usage.completion_tokens == 24
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + 24
    assert reply.usage.speculation["steps"] > 0
    assert reply._request_id


def a_text_is_valid():
    Completion.model_validate(complete(logprobs=2).to_dict())
    # The first token of a prompt has no log-probability, which the types do not know.
    reply = complete(logprobs=2, echo=True)
    choice = reply.choices[0]
    assert choice.text.startswith(TEXT["prompt"])
    assert "".join(choice.logprobs.tokens) == choice.text
    assert choice.logprobs.token_logprobs[0] is None
    assert all(len(top) >= 2 for top in choice.logprobs.top_logprobs[1:])
    assert reply.usage.completion_tokens == 24


def prompts_may_be_tokens_and_many():
    whole = complete().choices[0].text
    several = complete(prompt=[TEXT["prompt"], "The fox"], extra_body={"return_token_ids": True})
    assert [choice.index for choice in several.choices] == [0, 1]
    assert several.choices[0].text == whole
    tokens = several.choices[0].prompt_token_ids
    assert complete(prompt=tokens).choices[0].text == whole
    assert complete(prompt=[tokens, tokens]).choices[1].text == whole


def a_stream_of_chat_is_the_whole_answer():
    whole = chat()
    text, finish, usages = "", [], []
    for chunk in chat(stream=True, stream_options={"include_usage": True}):
        ChatCompletionChunk.model_validate(chunk.to_dict())
        if chunk.usage:
            usages.append(chunk.usage)
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish += [choice.finish_reason] if choice.finish_reason else []
    assert text == content(whole) and finish == ["length"]
    assert [usage.total_tokens for usage in usages] == [whole.usage.total_tokens]
    assert all(chunk.usage is None for chunk in chat(stream=True))


def a_stream_of_text_is_the_whole_text():
    whole = complete()
    chunks = list(complete(stream=True, stream_options={"include_usage": True}))
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == whole.choices[0].text
    assert chunks[-1].usage.completion_tokens == 24 and not chunks[-1].choices


def the_stream_helper_collects_the_answer():
    # The helper wants an answer that was not cut off.
    ask = {name: CHAT[name] for name in ["model", "messages", "temperature"]}
    whole = client.chat.completions.create(**ask)
    assert whole.choices[0].finish_reason == "stop", whole
    with client.chat.completions.stream(**ask) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
        final = stream.get_final_completion()
    assert text == content(whole) == content(final)


def log_probabilities_come_with_every_token():
    reply = chat(logprobs=True, top_logprobs=3)
    tokens = reply.choices[0].logprobs.content
    assert len(tokens) == 24 and "".join(token.token for token in tokens) == content(reply)
    for token in tokens:
        best = max(token.top_logprobs, key=lambda top: top.logprob)
        assert len(token.top_logprobs) == 3 and token.logprob <= 0
        assert best.logprob == token.logprob, "greedy takes the likeliest"
    streamed = [
        token.logprob
        for chunk in chat(logprobs=True, top_logprobs=3, stream=True)
        for choice in chunk.choices
        if choice.logprobs
        for token in choice.logprobs.content
    ]
    assert streamed == [token.logprob for token in tokens]


def choices_differ_and_a_seed_repeats_them():
    ask = dict(n=3, temperature=1.0, seed=7)
    first, second = chat(**ask), chat(**ask)
    texts = [content(first, index) for index in range(3)]
    assert texts == [content(second, index) for index in range(3)]
    assert len(set(texts)) == 3, texts
    assert content(chat(temperature=1.0, seed=8)) not in texts
    streamed = ["", "", ""]
    for chunk in chat(**ask, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == texts


def a_text_ends_before_a_stop_string():
    whole = complete(max_tokens=60).choices[0].text
    stop = whole[20:26]
    choice = complete(max_tokens=60, stop=[stop, "never"]).choices[0]
    assert choice.finish_reason == "stop" and choice.text == whole[: whole.index(stop)]
    streamed = complete(max_tokens=60, stop=stop, stream=True)
    assert "".join(part.choices[0].text for part in streamed if part.choices) == choice.text
    answer = content(chat())
    assert content(chat(stop=answer[10:14])) == answer[: answer.index(answer[10:14])]


def a_bias_forbids_a_token():
    ids = complete(max_tokens=1, extra_body={"return_token_ids": True}).choices[0].token_ids
    other = complete(max_tokens=1, logit_bias={str(ids[0]): -100}, extra_body={"return_token_ids": True})
    assert other.choices[0].token_ids != ids


def a_conversation_with_a_tool_goes_on():
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "How warm is it in Rome?"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "30 degrees"},
    ]
    ask = dict(tools=TOOLS, tool_choice="auto", parallel_tool_calls=False)
    reply = chat(messages=messages, **ask)
    assert reply.choices[0].message.role == "assistant"
    messages += [reply.choices[0].message, {"role": "user", "content": "And tomorrow?"}]
    longer = chat(messages=messages, **ask)
    assert longer.usage.prompt_tokens > reply.usage.prompt_tokens
    # Tools that may not be called are not shown to the model.
    assert chat(tools=TOOLS, tool_choice="none").usage.prompt_tokens == chat().usage.prompt_tokens


def errors_are_the_clients_own():
    error = raises(openai.BadRequestError, lambda: chat(temperature=-1), "`temperature` is -1")
    assert (error.param, error.type) == ("temperature", "invalid_request_error"), error.body
    raises(openai.BadRequestError, lambda: chat(n=0), "`n` is 0")
    raises(openai.BadRequestError, lambda: chat(stream=True, max_completion_tokens=0), "at least 1")
    error = raises(openai.BadRequestError, lambda: complete(prompt="word " * 2000), "prompt")
    assert error.code == "context_length_exceeded", error.body
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}]}]
    raises(openai.BadRequestError, lambda: chat(messages=image), "messages[0].content[0]")
    raises(openai.NotFoundError, lambda: chat(model="gpt-9"), "gpt-9")
    stranger = openai.OpenAI(base_url=f"{BASE}/v1", api_key="wrong", max_retries=0)
    raises(openai.AuthenticationError, lambda: stranger.chat.completions.create(**CHAT), "API key")
    hasty = client.with_options(timeout=0.01)
    slow = dict(max_tokens=400, extra_body={"ignore_eos": True})
    raises(openai.APITimeoutError, lambda: hasty.completions.create(**TEXT | slow))


def our_extensions_are_taken():
    more = {"speculation": "off", "priority": 1, "deadline_ms": 60_000}
    assert content(chat(extra_body=more)) == content(chat())
    raises(openai.BadRequestError, lambda: chat(extra_body={"speculation": "magic"}), "magic")


def a_stream_can_be_left():
    for ask in [chat, complete]:
        stream = ask(stream=True, max_tokens=400, extra_body={"ignore_eos": True})
        for _, _ in zip(range(3), stream):
            pass
        stream.close()
    assert content(chat())


def many_can_ask_and_leave_at_a_time():
    async def ask():
        async with openai.AsyncOpenAI(base_url=f"{BASE}/v1", api_key=KEY, max_retries=0) as many:

            async def one():
                return content(await many.chat.completions.create(**CHAT))

            async def leave():
                more = dict(max_tokens=400, extra_body={"ignore_eos": True})
                task = asyncio.create_task(many.completions.create(**TEXT | more))
                await asyncio.sleep(0.05)
                task.cancel()
                try:
                    await task
                except asyncio.CancelledError:
                    pass

            replies = await asyncio.gather(*(one() if number % 2 else leave() for number in range(12)))
            return {reply for reply in replies if reply is not None}

    assert asyncio.run(ask()) == {content(chat())}


run(
    models_are_listed,
    an_answer_is_valid,
    a_text_is_valid,
    prompts_may_be_tokens_and_many,
    a_stream_of_chat_is_the_whole_answer,
    a_stream_of_text_is_the_whole_text,
    the_stream_helper_collects_the_answer,
    log_probabilities_come_with_every_token,
    choices_differ_and_a_seed_repeats_them,
    a_text_ends_before_a_stop_string,
    a_bias_forbids_a_token,
    a_conversation_with_a_tool_goes_on,
    errors_are_the_clients_own,
    our_extensions_are_taken,
    a_stream_can_be_left,
    many_can_ask_and_leave_at_a_time,
)
