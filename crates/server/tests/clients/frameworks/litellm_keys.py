"""LiteLLM with a server that has a key: the right one opens it, a wrong one is an error of its own."""

import litellm

from subject import QUESTION
from common import BASE, KEY, MODEL, raises, run


def chat(key):
    # As OpenAI's interface, and as the one of a vLLM server.
    for provider in ("openai", "hosted_vllm"):
        yield litellm.completion(
            model=f"{provider}/{MODEL}",
            messages=[{"role": "user", "content": QUESTION}],
            max_tokens=4,
            api_base=f"{BASE}/v1",
            api_key=key,
        )


def the_right_key_opens():
    assert all(reply.choices[0].message.content for reply in chat(KEY))


def a_wrong_key_is_told_from_other_errors():
    raises(litellm.AuthenticationError, lambda: list(chat("wrong")))


run(the_right_key_opens, a_wrong_key_is_told_from_other_errors)
