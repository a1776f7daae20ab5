"""The evaluation harness with its own client for completions: likelihoods, greedy or not, and texts."""

import os

from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI

from subject import QUESTION
from common import BASE, KEY, MODEL, run

os.environ["OPENAI_API_KEY"] = KEY
lm = LocalCompletionsAPI(base_url=f"{BASE}/v1/completions", model=MODEL, auth_token=KEY)
CONTEXTS = ["Once upon a time", "The little dog", "One day, a girl"]


def instances(kind, *arguments):
    return [
        Instance(request_type=kind, doc={}, arguments=pair, idx=number)
        for number, pair in enumerate(arguments)
    ]


def texts(length):
    """What the model says after each context when it takes the likeliest token every time."""
    settings = {"max_gen_toks": length, "until": ["\n\n"], "temperature": 0}
    return lm.generate_until(instances("generate_until", *((context, settings) for context in CONTEXTS)))


def the_likeliest_text_is_greedy_and_another_is_not():
    for length in (1, 3, 8):
        likeliest = texts(length)
        assert all(likeliest), likeliest
        pairs = list(zip(CONTEXTS, likeliest))
        # The text is tokens of the model's own choice; told as text they have to be the same ones again.
        for context, text in pairs:
            both = lm.tok_encode(context + text)
            assert both[: len(lm.tok_encode(context))] == lm.tok_encode(context), (context, text)
        greedy = lm.loglikelihood(instances("loglikelihood", *pairs))
        other = lm.loglikelihood(instances("loglikelihood", *((context, " zebra physics") for context in CONTEXTS)))
        for pair, (sum_greedy, is_greedy), (sum_other, other_is_greedy) in zip(pairs, greedy, other):
            assert is_greedy is True, (pair, sum_greedy)
            assert other_is_greedy is False, pair
            assert sum_other < sum_greedy <= 0, (pair, sum_greedy, sum_other)


def a_whole_text_has_a_likelihood():
    plain, noise = lm.loglikelihood_rolling(
        instances("loglikelihood_rolling", ("Once upon a time there was a little dog.",), ("Dog a upon little time.",))
    )
    assert plain < 0 and noise < 0


def a_conversation_gets_a_text():
    chat = LocalChatCompletion(base_url=f"{BASE}/v1/chat/completions", model=MODEL, auth_token=KEY)
    request = (chat.apply_chat_template([{"role": "user", "content": QUESTION}]), {"max_gen_toks": 16})
    (text,) = chat.generate_until(instances("generate_until", request))
    assert text


run(the_likeliest_text_is_greedy_and_another_is_not, a_whole_text_has_a_likelihood, a_conversation_gets_a_text)
