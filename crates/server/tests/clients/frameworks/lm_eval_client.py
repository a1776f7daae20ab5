"""The evaluation harness with its own client for completions, whose tokens are made by the server: likelihoods, greedy or
not, texts, and a whole task by its command."""

import json
import os
import subprocess
import sys
import tempfile
import urllib.request

from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI

from subject import QUESTION
from common import BASE, KEY, MODEL, run

os.environ["OPENAI_API_KEY"] = KEY
# It finds out by itself that the server has a tokenizer, and asks for nothing from elsewhere.
lm = LocalCompletionsAPI(base_url=f"{BASE}/v1/completions", model=MODEL, auth_token=KEY)
CONTEXTS = ["Once upon a time", "The little dog", "One day, a girl"]


def instances(kind, *arguments):
    return [
        Instance(request_type=kind, doc={}, arguments=pair, idx=number)
        for number, pair in enumerate(arguments)
    ]


def post(path, **body):
    """What the server says, asked without the harness."""
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    request = urllib.request.Request(BASE + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)


def the_tokenizer_is_the_servers():
    assert lm.tokenizer_backend == "remote", lm.tokenizer_backend
    named = LocalCompletionsAPI(
        base_url=f"{BASE}/v1/completions", model=MODEL, auth_token=KEY, tokenizer_backend="remote"
    )
    for text in ["Once upon a time", " two  spaces", "Grüße, 世界! 🦊"]:
        ids = named.tok_encode(text)
        assert ids == post("/tokenize", prompt=text, add_special_tokens=False)["tokens"], (text, ids)
        assert named.decode_batch([ids]) == [text], (text, ids)
    # Each end is one token and comes back as itself.
    for token in (named.prefix_token_id, named.eot_token_id):
        (spelled,) = named.decode_batch([[token]])
        assert named.tok_encode(spelled) == [token], (token, spelled)
    assert named.decode_batch([[named.eot_token_id]]) == [named.eos_string]


def the_template_is_the_servers():
    talk = [{"role": "user", "content": QUESTION}]
    written = lm.tokenizer.apply_chat_template(talk)
    assert QUESTION in written
    assert written == post("/apply-template", messages=talk)["prompt"], written


def likelihoods_are_those_of_the_text():
    """The harness sends tokens; asked with the text, the server has to say the same."""
    context, continuation = "Once upon a time there was", " a little dog"
    ((total, _),) = lm.loglikelihood(instances("loglikelihood", (context, continuation)))
    reply = post(
        "/v1/completions", model=MODEL, prompt=context + continuation, echo=True, logprobs=1, max_tokens=1, temperature=0
    )
    logprobs = reply["choices"][0]["logprobs"]
    inside = [
        value
        for value, offset in zip(logprobs["token_logprobs"], logprobs["text_offset"])
        if len(context) <= offset < len(context + continuation)
    ]
    assert inside and abs(total - sum(inside)) < 1e-3, (total, inside)


TASK = """
task: beginnings
dataset_path: json
dataset_kwargs:
  data_files: {{test: {data}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{context}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list: [{{metric: acc}}]
"""


def a_task_is_run_by_the_command():
    """Stories go on with words that stand in stories; the harness finds that out."""
    questions = [
        {"context": "Once upon a time, there was a little", "choices": ["girl", "theorem"], "answer": 0},
        {"context": "The dog was very", "choices": ["invoice", "happy"], "answer": 1},
        {"context": "Tom and his mom went to the", "choices": ["park", "of"], "answer": 0},
    ]
    with tempfile.TemporaryDirectory() as folder:
        data = os.path.join(folder, "data.jsonl")
        with open(data, "w") as file:
            file.writelines(json.dumps(question) + "\n" for question in questions)
        with open(os.path.join(folder, "beginnings.yaml"), "w") as file:
            file.write(TASK.format(data=data))
        model = f"model={MODEL},base_url={BASE}/v1/completions,auth_token={KEY},tokenizer_backend=remote,num_concurrent=4"
        command = [sys.executable, "-m", "lm_eval", "run", "--model", "local-completions", "--model_args", model]
        command += ["--tasks", "beginnings", "--include_path", folder, "--output_path", folder]
        environment = {**os.environ, "HF_HOME": folder, "HF_DATASETS_OFFLINE": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        (results,) = [
            os.path.join(place, name)
            for place, _, names in os.walk(folder)
            for name in names
            if name.startswith("results_")
        ]
        with open(results) as file:
            found = json.load(file)["results"]["beginnings"]
    assert found["acc,none"] == 1, found


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


run(
    the_tokenizer_is_the_servers,
    the_template_is_the_servers,
    likelihoods_are_those_of_the_text,
    the_likeliest_text_is_greedy_and_another_is_not,
    a_whole_text_has_a_likelihood,
    a_conversation_gets_a_text,
    a_task_is_run_by_the_command,
)
