"""Dynamo's own indexer of KV events against a server's cache: after 10,000 events of a random load, with batches lost on the
way, both say the same of every prompt.

    python indexer.py PACELINE MODEL
"""

import asyncio
import json
import random
import socket
import sys
import time

import aiohttp
import msgpack
import zmq
import zmq.asyncio

PACELINE, MODEL = sys.argv[1:3]
NAME = "model"
EVENTS = 10_000
VOCABULARY = 200
BLOCK = 16
PATIENCE = 60

random.seed(11)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class LossyProxy:
    """Passes batches on, all but every fifth; counts the events and the blocks of all of them."""

    def __init__(self, endpoint):
        context = zmq.asyncio.Context.instance()
        self.source, self.sink = context.socket(zmq.SUB), context.socket(zmq.PUB)
        self.source.connect(endpoint)
        self.source.subscribe(b"")
        self.endpoint = f"tcp://127.0.0.1:{self.sink.bind_to_random_port('tcp://127.0.0.1')}"
        self.events = self.batches = self.lost = 0

    async def run(self):
        while True:
            topic, number, batch = await self.source.recv_multipart()
            self.batches += 1
            self.events += sum(max(1, len(fields[0]) if fields else 1) for _, *fields in msgpack.unpackb(batch)[1])
            if self.batches % 5 == 0:
                self.lost += 1
            else:
                await self.sink.send_multipart([topic, number, batch])


async def post(session, url, asked):
    async with session.post(url, json=asked) as reply:
        text = await reply.text()
        assert reply.status in (200, 201), (url, reply.status, text)
        return json.loads(text) if text else {}


async def reached(session, url):
    end = time.monotonic() + PATIENCE
    while True:
        try:
            async with session.get(url):
                return
        except aiohttp.ClientError:
            assert time.monotonic() < end, f"{url} does not answer"
            await asyncio.sleep(0.1)


async def start_server():
    events = {"enable_kv_cache_events": True, "endpoint": "tcp://127.0.0.1:0", "replay_endpoint": "tcp://127.0.0.1:0"}
    command = [PACELINE, "serve", MODEL, "--port", "0", "--threads", "1", "--served-model-name", NAME]
    command += ["--max-model-len", "512", "--max-num-seqs", "4", "--num-blocks", "256", "--log", "off", "--quiet"]
    command += ["--kv-events-config", json.dumps(events)]
    server = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    line = (await server.stdout.readline()).decode()
    return server, line.split()[-1]


def prompt(beginnings):
    beginning = random.choice(beginnings)
    cut = random.choice([len(beginning), random.randrange(1, len(beginning) + 1)])
    return beginning[:cut] + [random.randrange(VOCABULARY) for _ in range(random.randrange(1, 40))]


async def compare(session, server, indexer, beginnings):
    """What the indexer says of prompts is what the server then finds; the number of tokens found."""
    found = 0
    for _ in range(60):
        tokens = prompt(beginnings)
        # Of a prompt's last block something always has to be computed.
        asked = {"model_name": NAME, "token_ids": tokens[: (len(tokens) - 1) // BLOCK * BLOCK]}
        said, held = 0, None
        asked_server = {"model": NAME, "prompt": tokens, "max_tokens": 1}
        end = time.monotonic() + PATIENCE
        scores = (await post(session, f"{indexer}/query", asked)).get("scores") or {}
        said = next(iter(next(iter(scores.values()), {}).values()), 0)
        usage = (await post(session, f"{server}/v1/completions", asked_server))["usage"]
        held = usage["prompt_tokens_details"]["cached_tokens"]
        assert said == held, f"the indexer says {said}, the cache {held} of {len(tokens)}"
        found += held
        # The prompt itself is known to the indexer before the next one is asked for.
        whole = {"model_name": NAME, "token_ids": tokens[: len(tokens) // BLOCK * BLOCK]}
        while len(tokens) >= BLOCK:
            scores = (await post(session, f"{indexer}/query", whole)).get("scores") or {}
            if next(iter(next(iter(scores.values()), {}).values()), 0) == len(whole["token_ids"]):
                break
            assert time.monotonic() < end, f"the indexer does not learn of {whole}: {scores}"
            # A lost batch shows with the next one.
            await post(session, f"{server}/v1/completions", {**asked_server, "prompt": mark()})
            await asyncio.sleep(0.02)
    return found


def mark():
    return [random.randrange(VOCABULARY) for _ in range(BLOCK)]


async def main():
    server, url = await start_server()
    port = free_port()
    indexer = await asyncio.create_subprocess_exec(sys.executable, "-m", "dynamo.indexer", "--port", str(port))
    session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE))
    try:
        await reached(session, f"http://127.0.0.1:{port}/health")
        async with session.get(f"{url}/v1/engine") as reply:
            addresses = (await reply.json())["cache"]["kv_events"]
        proxy = LossyProxy(addresses["endpoint"])
        passing = asyncio.create_task(proxy.run())
        worker = {"instance_id": 1, "model_name": NAME, "block_size": BLOCK, "endpoint": proxy.endpoint}
        worker["replay_endpoint"] = addresses["replay_endpoint"]
        await post(session, f"http://127.0.0.1:{port}/register", worker)
        beginnings = [[random.randrange(VOCABULARY) for _ in range(16 * random.randrange(1, 12))] for _ in range(30)]

        async def client():
            while proxy.events < EVENTS:
                asked = {"model": NAME, "prompt": prompt(beginnings), "max_tokens": random.randrange(1, 8)}
                await post(session, f"{url}/v1/completions", asked)

        await asyncio.gather(*(client() for _ in range(4)))
        found = await compare(session, url, f"http://127.0.0.1:{port}", beginnings)
        assert proxy.lost > 10 and found > 0
        print(f"{proxy.events} blocks in events, {proxy.batches} batches, {proxy.lost} lost: the indexer agrees, {found} tokens found")
        passing.cancel()
    finally:
        for process in (server, indexer):
            process.kill()
            await process.wait()
        await session.close()


asyncio.run(main())
