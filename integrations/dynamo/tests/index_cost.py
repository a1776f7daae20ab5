"""What Dynamo's indexer needs for the blocks of many replicas: memory per block, and the processor's time to store and remove
one and to answer a query.

    python index_cost.py [REPLICAS] [BLOCKS_PER_REPLICA]
"""

import json
import os
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


def busy(pid):
    """Seconds of a processor that a process has had."""
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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
    return hashes, tokens


class Publishers:
    """A socket for each replica, known to the indexer."""

    def __init__(self, port):
        self.sockets, self.numbers = [], [0] * REPLICAS
        for replica in range(REPLICAS):
            publisher = zmq.Context.instance().socket(zmq.PUB)
            publisher.sndhwm = 0
            address = f"tcp://127.0.0.1:{publisher.bind_to_random_port('tcp://127.0.0.1')}"
            ask(port, "/register", {"instance_id": replica + 1, "endpoint": address, "model_name": "m", "block_size": BLOCK})
            self.sockets.append(publisher)

    def send(self, batches):
        """Sends an event of each replica after the other; the bytes of all of them."""
        sent = 0
        for replica, event in batches:
            batch = msgpack.packb([time.time(), [event], 0])
            self.sockets[replica].send_multipart([b"", self.numbers[replica].to_bytes(8, "big"), batch])
            self.numbers[replica] += 1
            sent += len(batch)
        return sent


def start(port):
    indexer = subprocess.Popen(
        [sys.executable, "-m", "dynamo.indexer", "--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health").read()
            return indexer
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def until(port, texts, held):
    """Waits until of each of the texts all tokens are known, or none."""
    for tokens in texts:
        while known(port, tokens) != (len(tokens) if held else 0):
            time.sleep(0.2)


def main():
    port = free_port()
    indexer = start(port)
    try:
        publishers = Publishers(port)
        time.sleep(3)
        chains = [(replica, *chain(replica, number)) for number in range(BLOCKS // CHAIN) for replica in range(REPLICAS)]
        last = [tokens for _, _, tokens in chains[-REPLICAS:]]
        blocks = len(chains) * CHAIN
        memory, spent = resident(indexer.pid), busy(indexer.pid)
        stored = [(replica, ["BlockStored", names, None, tokens, BLOCK, None, "GPU", None]) for replica, names, tokens in chains]
        stored_bytes = publishers.send(stored) / blocks
        until(port, last, True)
        storing, grown = busy(indexer.pid) - spent, resident(indexer.pid) - memory
        spent, start_of_queries, queries = busy(indexer.pid), time.monotonic(), 2000
        for number in range(queries):
            known(port, last[number % REPLICAS])
        each, asking = (time.monotonic() - start_of_queries) / queries, busy(indexer.pid) - spent
        spent = busy(indexer.pid)
        removed_bytes = publishers.send([(replica, ["BlockRemoved", names, "GPU"]) for replica, names, _ in chains]) / blocks
        until(port, last, False)
        removing = busy(indexer.pid) - spent
        print(
            f"{REPLICAS} replicas, {blocks} blocks: {stored_bytes:.0f} bytes to store a block and {removed_bytes:.0f} to remove it, "
            f"{grown / blocks:.0f} bytes of memory; {storing / blocks * 1e6:.2f} µs of a processor to store and "
            f"{removing / blocks * 1e6:.2f} µs to remove; a query of {CHAIN * BLOCK} tokens takes {asking / queries * 1e6:.0f} µs of a "
            f"processor, {each * 1e3:.2f} ms over HTTP"
        )
    finally:
        indexer.kill()
        indexer.wait()


main()
