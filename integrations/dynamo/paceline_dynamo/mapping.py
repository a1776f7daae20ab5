"""Requests and replies of Dynamo in terms of `/v1/completions`. Nothing here talks to anybody."""

import hashlib
import json
from dataclasses import dataclass, field

TOKEN_ID = "token_id:"

SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "n",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
)
GUIDED = ("json", "regex", "choice", "grammar", "structural_tag")

# Endings of the server that are not the text's: the rest has to come from another worker.
UNFINISHED = ("abort", "error", "moved")


class Unsupported(ValueError):
    """A request that cannot be served as it is."""


def body(request, request_id, model, context_length):
    """The body of a completion request."""
    tokens = list(request["token_ids"])
    sampling = request.get("sampling_options") or {}
    stop = request.get("stop_conditions") or {}
    output = request.get("output_options") or {}
    if output.get("prompt_logprobs") is not None:
        raise Unsupported("prompt_logprobs are not supported by this worker")
    asked = {
        "model": model,
        "prompt": tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        "max_tokens": stop.get("max_tokens") or max(1, context_length - len(tokens)),
    }
    asked.update({name: sampling[name] for name in SAMPLING if sampling.get(name) is not None})
    if asked.get("n", 1) == 1:
        # A server that goes down does not wait for it: another worker goes on.
        asked["return_continuation"] = True
    # A worker that goes on with this request gets the same id, and so the same seed.
    asked.setdefault("seed", seed(request_id))
    if stop.get("min_tokens") is not None:
        # Of a request that has migrated, the most is what is left, and the least is what it was.
        asked["min_tokens"] = min(stop["min_tokens"], asked["max_tokens"])
    if stop.get("ignore_eos"):
        asked["ignore_eos"] = True
    ends = {token for kind in ("", "_hidden", "_visible") for token in stop.get(f"stop_token_ids{kind}") or ()}
    if ends:
        asked["stop_token_ids"] = sorted(ends)
    if output.get("logprobs") is not None:
        asked["logprobs"] = int(output["logprobs"])
        asked["return_tokens_as_token_ids"] = True
    guided = sampling.get("guided_decoding") or {}
    guided = {name: guided[name] for name in GUIDED if guided.get(name) is not None}
    if guided:
        asked["structured_outputs"] = guided
    salt = (request.get("routing") or {}).get("cache_namespace")
    if salt:
        asked["cache_salt"] = salt
    return asked


def seed(request_id):
    """The seed of a request that has none: it follows from the request's id."""
    return int.from_bytes(hashlib.sha256(str(request_id).encode()).digest()[:6], "big")


@dataclass
class Said:
    """What a piece of a stream says."""

    # One for each choice that has gone on, however many tokens have come at once: a worker that is behind catches up.
    chunks: list = field(default_factory=list)
    endings: list = field(default_factory=list)
    counts: dict = None
    # Why the rest of the text has to come from another worker.
    broken: str = None


def read(lines):
    """What some lines of a stream say."""
    said, chunks = Said(), {}
    for line in lines:
        if not line.startswith(b"data: {"):
            continue
        message = json.loads(line[6:])
        if "error" in message:
            said.broken = str(message["error"])
            break
        for choice in message["choices"]:
            new, reason = chunk(choice), choice.get("finish_reason")
            if reason in UNFINISHED:
                said.broken = reason
            elif reason:
                said.endings.append({**new, "finish_reason": reason})
            elif new["token_ids"]:
                before = chunks.setdefault(new["index"], new)
                if before is not new:
                    for name in ("token_ids", "log_probs", "top_logprobs"):
                        if name in new:
                            before[name] += new[name]
        said.counts = message.get("usage") or said.counts
    said.chunks = list(chunks.values())
    return said


def chunk(choice):
    """A choice of a reply as a chunk, without its ending."""
    out = {"token_ids": choice.get("token_ids") or [], "index": choice.get("index", 0)}
    logprobs = choice.get("logprobs")
    if logprobs and out["token_ids"]:
        out["log_probs"] = logprobs["token_logprobs"]
        out["top_logprobs"] = [top(entry) for entry in logprobs["top_logprobs"]]
    return out


def top(entry):
    """The likeliest tokens at a position, the likeliest first."""
    ranked = sorted((entry or {}).items(), key=lambda item: -item[1])
    return [
        {"rank": rank, "token_id": int(name.removeprefix(TOKEN_ID)), "token": None, "logprob": logprob}
        for rank, (name, logprob) in enumerate(ranked, 1)
    ]


def usage(counts):
    """The counts of a reply."""
    names = ("prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details")
    return {name: counts[name] for name in names if name in counts}
