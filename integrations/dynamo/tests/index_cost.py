"""What Dynamo's indexer needs for the blocks of many replicas: memory per block, and blocks per second that it takes in.

    python index_cost.py [REPLICAS] [BLOCKS_PER_REPLICA]
"""

import json
import random
import socket
import subprocess
import sys
import time
import urllib.request

import msgpack
import zmq

REPLICAS = int(sys.argv[1]) if len(sys.argv) > 1 else 20
BLOCKS = int(sys.argv[2]) if len(sys.argv) > 2 else 10_000
CHAIN, BLOCK = 50, 16

random.seed(1)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def resident(pid):
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) * 1024


def ask(port, path, asked):
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", json.dumps(asked).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.loads(reply.read() or b"{}")


def known(port, tokens):
    scores = ask(port, "/query", {"model_name": "m", "token_ids": tokens}).get("scores") or {}
    return sum(next(iter(ranks.values())) for ranks in scores.values())


def chain(replica, number):
    """A text of its own: `CHAIN` blocks behind each other, with ids as a vocabulary of 150,000 has them."""
    first = (replica * BLOCKS + number * CHAIN) + 1
    hashes = [(first + block) * 0x9E3779B97F4A7C15 % 2**64 for block in range(CHAIN)]
    tokens = [random.randrange(150_000) for _ in range(CHAIN * BLOCK)]
    return ["BlockStored", hashes, None, tokens, BLOCK, None, "GPU", None], tokens


def main():
    port = free_port()
    indexer = subprocess.Popen(
        [sys.executable, "-m", "dynamo.indexer", "--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    context = zmq.Context.instance()
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health").read()
                break
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.1)
        sockets = []
        for replica in range(REPLICAS):
            publisher = context.socket(zmq.PUB)
            publisher.sndhwm = 0
            address = f"tcp://127.0.0.1:{publisher.bind_to_random_port('tcp://127.0.0.1')}"
            ask(port, "/register", {"instance_id": replica + 1, "endpoint": address, "model_name": "m", "block_size": BLOCK})
            sockets.append(publisher)
        time.sleep(3)
        before, sent, last = resident(indexer.pid), 0, {}
        batches = []
        for replica in range(REPLICAS):
            for number in range(BLOCKS // CHAIN):
                event, last[replica] = chain(replica, number)
                batches.append((replica, number, msgpack.packb([time.time(), [event], 0])))
        start = time.monotonic()
        for replica, number, batch in batches:
            sockets[replica].send_multipart([b"", number.to_bytes(8, "big"), batch])
            sent += len(batch)
        for tokens in last.values():
            while known(port, tokens) < len(tokens):
                time.sleep(0.02)
        seconds = time.monotonic() - start
        blocks = REPLICAS * BLOCKS
        after = resident(indexer.pid)
        start, queries = time.monotonic(), 300
        for _ in range(queries):
            known(port, tokens)
        each = (time.monotonic() - start) / queries
        print(
            f"{REPLICAS} replicas, {blocks} blocks: {sent / blocks:.0f} bytes per block on the wire, "
            f"{(after - before) / blocks:.0f} bytes per block in memory ({before >> 20} to {after >> 20} MiB), "
            f"{blocks / seconds:.0f} blocks/s taken in, {each * 1e3:.2f} ms per query of {len(tokens)} tokens over HTTP"
        )
    finally:
        indexer.kill()
        indexer.wait()


main()
