"""A frontend of Dynamo and two workers with the built-in model, on one machine with file discovery:
warm prompts go where they are cached, and texts survive the death of a worker and of an engine, and a worker that is told
to go, to the last token.

    python end_to_end.py PACELINE MODEL_FOLDER
"""

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path

import aiohttp

PACELINE, MODEL = sys.argv[1:3]
HERE = Path(__file__).resolve().parent
NAME = "storyteller"
# Enough that a text is not at its end before its worker is.
TOKENS = 800
PATIENCE = 120


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def small_free_port():
    """A free port that fits into 16 bits with a sign, which is how Dynamo reads that of its metrics."""
    while True:
        port = random.randrange(20_000, 2**15)
        with contextlib.suppress(OSError), socket.socket() as listener:
            listener.bind(("127.0.0.1", port))
            return port


class Process:
    """A process of the deployment, with its output in a file."""

    def __init__(self, folder, name, *command):
        self.log = Path(folder) / f"{name}.log"
        self.command = command
        self.process = None

    async def start(self, environment):
        with open(self.log, "ab") as out:
            self.process = await asyncio.create_subprocess_exec(*self.command, stdout=out, stderr=out, env=environment)
        return self

    async def kill(self):
        if self.process and self.process.returncode is None:
            self.process.kill()
        await self.process.wait()

    def children(self):
        path = Path(f"/proc/{self.process.pid}/task")
        return [int(pid) for task in path.iterdir() for pid in (task / "children").read_text().split()]

    def engine_url(self):
        """Where the worker's engine listens, by its log."""
        text = self.log.read_text()
        return text.rsplit("paceline serve listens at ", 1)[1].split()[0] if "listens at" in text else None


class Deployment:
    def __init__(self, folder):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.environment = {
            **os.environ,
            "DYN_DISCOVERY_BACKEND": "file",
            "DYN_FILE_KV": f"{folder}/discovery",
            "DYN_REQUEST_PLANE": "tcp",
            "DYN_EVENT_PLANE": "zmq",
            "DYN_EVENT_PLANE_HOST": "127.0.0.1",
            "DYN_TCP_RPC_HOST": "127.0.0.1",
            "DYN_TCP_RESPONSE_STREAM_HOST": "127.0.0.1",
            # What runs is to move, not to finish.
            "DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS": "0",
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": str(HERE.parent),
        }
        frontend = ["-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(self.port)]
        frontend += ["--router-mode", "kv", "--kv-cache-block-size", "16", "--migration-limit", "3"]
        self.frontend = Process(folder, "frontend", sys.executable, *frontend)
        worker = ["-m", "paceline_dynamo", "--paceline", PACELINE, "--model-path", MODEL, "--served-model-name", NAME]
        worker += ["--", "--threads", "1", "--max-num-seqs", "4", "--max-model-len", "1024"]
        self.workers = [Process(folder, f"worker{number}", sys.executable, *worker) for number in range(2)]
        for worker in self.workers:
            worker.system_port = small_free_port()

    async def start(self):
        await self.frontend.start(self.environment)
        for worker in self.workers:
            await self.start_worker(worker)

    async def start_worker(self, worker):
        await worker.start({**self.environment, "DYN_SYSTEM_PORT": str(worker.system_port)})

    async def stop(self):
        for process in [*self.workers, self.frontend]:
            if process.process:
                await process.kill()

    def logs(self):
        for process in [self.frontend, *self.workers]:
            print(f"--- {process.log.name}\n{process.log.read_text()[-3000:]}")


async def until(holds, what):
    end = time.monotonic() + PATIENCE
    while True:
        try:
            if await holds():
                return
        except (aiohttp.ClientError, KeyError, IndexError, TypeError):
            pass
        assert time.monotonic() < end, f"{what} takes too long"
        await asyncio.sleep(0.1)


def body(prompt, **more):
    asked = {"model": NAME, "prompt": prompt, "max_tokens": TOKENS, "ignore_eos": True, "temperature": 0}
    return {**asked, **more}


class Client:
    def __init__(self, deployment):
        self.deployment = deployment
        self.session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE))
        self.pause = 0.0

    async def post(self, asked, url=None):
        async with self.session.post(f"{url or self.deployment.url}/v1/completions", json=asked) as reply:
            text = await reply.text()
            assert reply.status == 200, (reply.status, text)
            return json.loads(text)

    async def stream(self, asked, after, act):
        """The text of a stream, and its number of tokens; `act` happens after some chunks. `pause` becomes the longest time
        without a chunk since then."""
        text, chunks, usage, last = "", 0, None, None
        asked = {**asked, "stream": True, "stream_options": {"include_usage": True}}
        async with self.session.post(f"{self.deployment.url}/v1/completions", json=asked) as reply:
            assert reply.status == 200, await reply.text()
            async for line in reply.content:
                if not line.startswith(b"data: {"):
                    continue
                message = json.loads(line[6:])
                assert "error" not in message, message
                usage = message.get("usage") or usage
                if last is not None:
                    self.pause, last = max(self.pause, time.monotonic() - last), time.monotonic()
                for choice in message["choices"]:
                    text += choice.get("text") or ""
                    chunks += 1
                if chunks == after:
                    self.pause, last = 0.0, time.monotonic()
                    await act()
                    chunks += 1
        return text, usage["completion_tokens"]

    async def metric(self, url, name, label=""):
        """The sum of a metric with a label, of the frontend or of a worker."""
        async with self.session.get(f"{url}/metrics") as reply:
            lines = (await reply.text()).splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(f"{name}{{") and label in line)

    async def migrations(self):
        """Requests that the frontend has sent on in mid-stream so far."""
        return await self.metric(self.deployment.url, "dynamo_frontend_model_migration_total", "ongoing_request")

    async def state(self, worker):
        async with self.session.get(f"{worker.engine_url()}/v1/engine") as reply:
            return await reply.json()

    async def serving(self):
        """The worker whose engine runs something."""
        for worker in self.deployment.workers:
            if (await self.state(worker))["slots"]["running"] > 0:
                return worker
        raise AssertionError("nothing runs")


async def both_serve(client):
    """Both workers are known to the frontend: cold prompts, several at a time, reach both."""
    salt = 0

    async def reached():
        nonlocal salt
        salt += 1
        prompts = [f"Number {salt}.{n}: once upon a time there was" for n in range(6)]
        await asyncio.gather(*(client.post(body(prompt, max_tokens=40)) for prompt in prompts))
        states = [await client.state(worker) for worker in client.deployment.workers]
        return all(state["slots"]["requests_ended"] > 0 for state in states)

    await until(reached, "the start of both workers")


async def warm_prompts_go_where_they_are_cached(client):
    texts = [f"Tale {n}. " + "The fox and the bear walked into the forest. " * (4 + n) for n in range(6)]
    for text in texts:
        await client.post(body(text, max_tokens=4))
    # The events of the last one are on their way.
    await asyncio.sleep(1)
    hits = 0
    for round in range(3):
        for text in texts:
            usage = (await client.post(body(f"{text} Then {round}", max_tokens=4)))["usage"]
            cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
            hits += cached >= usage["prompt_tokens"] * 0.6
    assert hits == 18, f"{hits} of 18 warm prompts found their cache"
    # Warmed behind the frontend's back, on either engine: only events can tell.
    for number, worker in enumerate(client.deployment.workers):
        for n in range(3):
            text = f"Secret {number}.{n}. " + "A little boat sailed over the wide blue sea. " * 5
            await client.post({"prompt": text, "max_tokens": 4, "temperature": 0}, worker.engine_url())
            await asyncio.sleep(1)
            usage = (await client.post(body(text + " And then", max_tokens=4)))["usage"]
            assert (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0) > 16, usage
    print("warm prompts: 18 of 18 and 6 of 6 found their cache")


async def load_is_told(client):
    """What the router weighs: blocks in all and in use, and the share of hits, as the engine has them."""
    worker = client.deployment.workers[0]
    url = f"http://127.0.0.1:{worker.system_port}"

    async def told():
        cache = (await client.state(worker))["cache"]
        names = ("total_blocks", "gpu_cache_usage_percent", "kv_cache_hit_rate")
        total, used, hits = [await client.metric(url, f"dynamo_component_{name}") for name in names]
        expected = (cache["blocks"], cache["blocks_used"] / cache["blocks"], cache["prefix"]["hit_rate"])
        return expected[2] > 0 and all(abs(a - b) < 1e-6 for a, b in zip((total, used, hits), expected))

    await until(told, "the load of a worker")
    print("load: blocks and hits are told as they are")


OPTIONS = [
    ("greedy", {}),
    ("seeded", {"temperature": 0.9, "seed": 7, "top_k": 40}),
    ("seeded, top-p", {"temperature": 1.0, "top_p": 0.9, "seed": 123456}),
]


async def texts_survive(client, what, kill):
    for name, options in OPTIONS:
        asked = body(f"Once upon a time, {what}, {name},", **options)
        undisturbed, tokens = await client.stream(asked, -1, None)
        assert tokens == TOKENS, tokens
        killed, before = [], await client.migrations()

        async def act():
            worker = await client.serving()
            killed.append(worker)
            await kill(worker)

        text, tokens = await client.stream(asked, 30, act)
        assert killed, "nothing was killed"
        assert tokens == TOKENS, f"{what}, {name}: {tokens} tokens"
        assert text == undisturbed, f"{what}, {name}:\n{text}\n{undisturbed}"
        moved = await client.migrations() - before
        assert moved == 1, f"{what}, {name}: {moved} migrations"
        print(f"{what}, {name}: all {tokens} tokens, the same text; a pause of {client.pause:.2f} s")
        await start_again(client, killed[0])


async def start_again(client, worker):
    await worker.process.wait()
    worker.log.write_text("")
    await client.deployment.start_worker(worker)
    await both_known(client)


async def a_drain_under_load_loses_nothing(client):
    """Every slot of both workers has a stream; those of the one that goes move to the other, and wait for a slot there."""
    asked = [body(f"The tale of {n} foxes,", **OPTIONS[n % len(OPTIONS)][1]) for n in range(8)]
    undisturbed = await asyncio.gather(*(client.stream(one, -1, None) for one in asked))
    assert all(tokens == TOKENS for _, tokens in undisturbed)
    before, begun, gone = await client.migrations(), 0, client.deployment.workers[0]
    told = ended = None

    async def act():
        nonlocal begun, told
        begun += 1
        if begun == len(asked):
            assert (await client.state(gone))["slots"]["running"] > 0
            told = time.monotonic()
            await tell_to_go(gone)

    async def end():
        nonlocal ended
        ended = (await gone.process.wait(), time.monotonic())

    *texts, _ = await asyncio.gather(*(client.stream(one, 10, act) for one in asked), end())
    assert texts == undisturbed, [pair for pair in zip(texts, undisturbed) if pair[0] != pair[1]]
    moved = await client.migrations() - before
    assert moved > 0, "nothing has moved"
    assert ended[0] == 0, ended
    print(f"a drain under load: {len(asked)} streams, {moved:.0f} moved, all the same text; the worker ended after {ended[1] - told:.2f} s")


async def both_known(client):
    """The worker that was started again serves."""

    async def engines():
        return all([(await client.state(worker))["status"]["phase"] == "serving" for worker in client.deployment.workers])

    await until(engines, "the start of a worker")
    await both_serve_again(client)


async def both_serve_again(client):
    before = [(await client.state(worker))["slots"]["requests_ended"] for worker in client.deployment.workers]
    fresh = time.monotonic_ns()

    async def reached():
        prompts = [f"{fresh}.{n} {os.urandom(4).hex()}: once there was" for n in range(8)]
        await asyncio.gather(*(client.post(body(prompt, max_tokens=40)) for prompt in prompts))
        now = [(await client.state(worker))["slots"]["requests_ended"] for worker in client.deployment.workers]
        return all(later > earlier for later, earlier in zip(now, before))

    await until(reached, "a worker's return")


async def replies_are_mapped(client):
    """Log-probabilities, guided decoding, stop strings and minimum lengths, through both hops."""
    reply = await client.post(body("Once upon a time", max_tokens=8, logprobs=2))
    logprobs = reply["choices"][0]["logprobs"]
    assert len(logprobs["token_logprobs"]) == 8 and all(value <= 0 for value in logprobs["token_logprobs"]), logprobs
    direct = await client.post(
        {"prompt": "Once upon a time", "max_tokens": 8, "logprobs": 2, "temperature": 0, "ignore_eos": True},
        client.deployment.workers[0].engine_url(),
    )
    expected = direct["choices"][0]["logprobs"]["token_logprobs"]
    close = [abs(one - other) < 1e-4 for one, other in zip(logprobs["token_logprobs"], expected)]
    assert all(close), (logprobs["token_logprobs"], expected)
    assert reply["choices"][0]["text"] == direct["choices"][0]["text"]
    guided = body("The ball is", max_tokens=20, guided_choice=["red", "blue"])
    text = (await client.post(guided))["choices"][0]["text"]
    assert text in ("red", "blue"), text
    # Dynamo leaves stop strings out where ends are ignored.
    whole = (await client.post(body("Once upon a time", max_tokens=40, ignore_eos=False)))["choices"][0]["text"]
    word = whole.split()[4]
    stopped = (await client.post(body("Once upon a time", ignore_eos=False, stop=[word])))["choices"][0]
    assert stopped["finish_reason"] == "stop" and stopped["text"] == whole[: whole.index(word)], (word, stopped)
    print("replies: log-probabilities, choices, stop strings as asked for")


async def cancellation_frees_the_engine(client):
    asked = body("A long tale:", max_tokens=900, stream=True)
    reply = await client.session.post(f"{client.deployment.url}/v1/completions", json=asked)
    await reply.content.readline()
    worker = await client.serving()
    reply.close()

    async def idle():
        slots = (await client.state(worker))["slots"]
        return slots["running"] == 0 and slots["tokens"] < 1_000_000

    await until(idle, "the end of a request whose client has left")
    print("cancellation: the engine is free")


async def kill_worker(worker):
    await worker.kill()


async def tell_to_go(worker):
    worker.process.terminate()


async def kill_engine(worker):
    for pid in worker.children():
        os.kill(pid, signal.SIGKILL)


async def main():
    with tempfile.TemporaryDirectory() as folder:
        deployment = Deployment(folder)
        client = Client(deployment)
        try:
            await deployment.start()
            await until(lambda: engines_up(client), "the start")
            await both_serve(client)
            await replies_are_mapped(client)
            await warm_prompts_go_where_they_are_cached(client)
            await load_is_told(client)
            await cancellation_frees_the_engine(client)
            await texts_survive(client, "a worker killed", kill_worker)
            await texts_survive(client, "an engine killed", kill_engine)
            await texts_survive(client, "a worker told to go", tell_to_go)
            await a_drain_under_load_loses_nothing(client)
        except BaseException:
            deployment.logs()
            raise
        finally:
            await deployment.stop()
            await client.session.close()


async def engines_up(client):
    for worker in client.deployment.workers:
        await client.state(worker)
    async with client.session.get(f"{client.deployment.url}/v1/models") as reply:
        return NAME in await reply.text()


asyncio.run(main())
