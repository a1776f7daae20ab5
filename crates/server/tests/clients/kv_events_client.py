"""A subscriber of KV events that loses batches on purpose, against a server under a random load with evictions: what it
predicts of a prompt is what the server then finds in its cache."""

import faulthandler
import json
import os
import random
import threading
import urllib.request

import msgpack
import zmq

from common import BASE, KEY, MODEL, run

LONG = "PACELINE_TEST_LONG" in os.environ
ROUNDS, BURST, CHECKED = (40, 100, 25) if LONG else (3, 40, 12)
END = 2**64 - 1
VOCABULARY = 200

random.seed(17)
if LONG:
    faulthandler.dump_traceback_later(1800, exit=True)


def ask(path, body=None):
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(BASE + path, data, headers), timeout=120) as reply:
        return json.load(reply)


def complete(tokens, max_tokens, **more):
    """Runs a prompt; the number of its tokens that were cached."""
    body = {"model": MODEL, "prompt": tokens, "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0, **more}
    return ask("/v1/completions", body)["usage"]["prompt_tokens_details"]["cached_tokens"]


class Subscriber:
    """The server's cache by its events. Every `lose`-th batch is lost on the way, and asked for again."""

    def __init__(self, addresses, lose):
        context = zmq.Context.instance()
        self.events, self.missed = context.socket(zmq.SUB), context.socket(zmq.DEALER)
        self.events.connect(addresses["endpoint"])
        self.events.subscribe(addresses["topic"].encode())
        self.missed.connect(addresses["replay_endpoint"])
        self.topic = addresses["topic"].encode()
        self.lose, self.next, self.lost, self.replays, self.size = lose, 0, 0, 0, None
        self.events_read = self.bytes_read = 0
        self.clear()

    def clear(self):
        self.blocks, self.children, self.states = {}, {}, set()

    def read(self, batch):
        self.bytes_read += len(batch)
        seconds, events, rank = msgpack.unpackb(batch)
        assert seconds > 1.6e9 and rank == 0, (seconds, rank)
        for name, *fields in events:
            self.events_read += 1
            if name == "AllBlocksCleared":
                self.clear()
            elif name == "BlockStored":
                self.stored(*fields)
            else:
                assert name == "BlockRemoved", name
                self.removed(*fields)

    def stored(self, hashes, parent, tokens, size, lora_id, medium, lora_name, extra=None, group=0, kind=None):
        assert (lora_id, medium, lora_name, extra) == (None, "GPU", None, None)
        assert len(tokens) == size * len(hashes)
        self.size = size
        for index, name in enumerate(hashes):
            block = (parent, tuple(tokens[index * size : (index + 1) * size]))
            assert parent is None or parent in self.blocks
            if kind == "mamba":
                assert group == 1 and self.blocks[name] == block and name not in self.states
                self.states.add(name)
            else:
                assert name not in self.blocks, "a block is stored twice"
                self.blocks[name] = block
                self.children[block] = name
            parent = name

    def removed(self, hashes, medium, group=0, kind=None):
        for name in hashes:
            if kind == "mamba":
                self.states.remove(name)
            else:
                assert self.children.pop(self.blocks.pop(name)) == name

    def follow(self, known):
        """Reads until `known` holds."""
        while not known():
            if not self.events.poll(1000):
                # What was lost last shows in no gap.
                self.replay()
                continue
            topic, number, batch = self.events.recv_multipart()
            number = int.from_bytes(number, "big")
            assert topic == self.topic
            if self.lose and number % self.lose == 0:
                self.lost += 1
            elif number > self.next:
                self.replay()
            elif number == self.next:
                self.read(batch)
                self.next += 1

    def replay(self):
        self.replays += 1
        self.missed.send_multipart([b"", self.next.to_bytes(8, "big")])
        while True:
            empty, topic, number, batch = self.missed.recv_multipart()
            number = int.from_bytes(number, "big")
            if number == END:
                assert (empty, topic, batch) == (b"", b"", b"")
                return
            assert topic == self.topic
            self.read(batch)
            self.next = number + 1

    def predict(self, tokens, recurrent):
        """The tokens of a prompt that the server has, all but the last of which could be cached."""
        parent, usable = None, 0
        for end in range(self.size, len(tokens), self.size):
            name = self.children.get((parent, tuple(tokens[end - self.size : end])))
            if name is None:
                break
            if not recurrent or name in self.states:
                usable = end
            parent = name
        return usable


def families():
    """Beginnings that prompts share."""
    return [[random.randrange(VOCABULARY) for _ in range(16 * random.randrange(1, 10))] for _ in range(12)]


def prompt(beginnings):
    beginning = random.choice(beginnings)
    cut = random.choice([len(beginning), random.randrange(1, len(beginning) + 1)])
    rest = [random.randrange(VOCABULARY) for _ in range(random.randrange(1, 40))]
    return beginning[:cut] + rest


def burst(beginnings):
    """Requests of several clients at a time."""
    prompts = [prompt(beginnings) for _ in range(BURST)]
    failed = []

    def client():
        try:
            while prompts:
                complete(prompts.pop(), random.randrange(1, 24))
        except IndexError:
            pass
        except Exception as error:
            failed.append(error)

    clients = [threading.Thread(target=client) for _ in range(4)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join()
    assert not failed, failed


def settle(subscribers):
    """A prompt that was never there before: once it is known, so is all that came before it."""
    mark = [random.randrange(VOCABULARY) for _ in range(48)]
    assert complete(mark, 1) == 0
    for subscriber in subscribers:
        subscriber.follow(lambda: (None, tuple(mark[:16])) in subscriber.children)


def hits_are_as_predicted():
    cache = ask("/v1/engine")["cache"]
    recurrent = cache["snapshots"]["total"] > 0
    lossy, steady = Subscriber(cache["kv_events"], 3), Subscriber(cache["kv_events"], 0)
    both = [lossy, steady]
    hits = wrong = 0
    for _ in range(ROUNDS):
        beginnings = families()
        burst(beginnings)
        for _ in range(CHECKED):
            settle(both)
            tokens = prompt(beginnings)
            predicted = lossy.predict(tokens, recurrent)
            assert steady.predict(tokens, recurrent) == predicted
            found = complete(tokens, random.randrange(1, 24))
            hits += found > 0
            wrong += found != predicted
        assert (lossy.blocks, lossy.states) == (steady.blocks, steady.states)
        assert len(lossy.blocks) <= cache["blocks"]
    # Evictions there were: more was told than fits.
    assert steady.events_read > 2 * len(steady.blocks)
    assert lossy.lost > 0 and lossy.replays > 0
    assert wrong == 0, f"{wrong} of {ROUNDS * CHECKED} predictions were wrong"
    assert hits > ROUNDS * CHECKED / 4, f"{hits} hits"
    print(
        f"{ROUNDS * CHECKED} predictions held, {hits} of them hits; {steady.next} batches, {steady.events_read} events, "
        f"{steady.bytes_read} bytes, {len(steady.blocks)} blocks, {len(steady.states)} states at the end; "
        f"{lossy.lost} lost, {lossy.replays} replays"
    )
    # One that comes late, and is told all of it anew if the beginning is gone.
    late = Subscriber(cache["kv_events"], 0)
    late.replay()
    settle([late, steady])
    assert (late.blocks, late.states) == (steady.blocks, steady.states)
    # One that asks to be told all of it anew, by a number that was never given.
    late.blocks, late.children, late.states, late.next = {"what": "is not there"}, {}, set(), 2**63
    late.replay()
    settle([late, steady])
    assert (late.blocks, late.states) == (steady.blocks, steady.states)


def the_same_tokens_under_two_salts_are_two_blocks():
    subscriber = Subscriber(ask("/v1/engine")["cache"]["kv_events"], 0)
    subscriber.replay()
    tokens = [random.randrange(VOCABULARY) for _ in range(48)]
    first = (None, tuple(tokens[:16]))

    def names():
        return [name for name, block in subscriber.blocks.items() if block == first]

    for known, salt in enumerate(["one", "other", None], 1):
        more = {"cache_salt": salt} if salt else {}
        assert complete(tokens, 1, **more) == 0, "a hit under another salt"
        subscriber.follow(lambda: len(names()) == known)
        assert complete(tokens, 1, **more) > 0, "no hit under the same salt"
    assert len(set(names())) == 3


run(hits_are_as_predicted, the_same_tokens_under_two_salts_are_two_blocks)
