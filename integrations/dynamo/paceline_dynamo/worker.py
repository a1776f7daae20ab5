"""The worker: registers a server with Dynamo, passes requests on, and tells of its cache and its load."""

import argparse
import asyncio
import logging
import os
import signal

import aiohttp
from dynamo.common.backend.engine import EngineConfig, LLMEngine, LlmRegistration
from dynamo.common.backend.publisher import ComponentSnapshot, ZmqSource
from dynamo.common.backend.worker import WorkerConfig
from dynamo.common.utils.token_ids import normalize_request_token_ids
from dynamo.llm.exceptions import EngineShutdown, InvalidArgument, StreamIncomplete, WorkerUnavailable

from . import mapping
from .child import Child

log = logging.getLogger(__name__)

# Time between two looks at the server's load.
LOAD_SECONDS = 0.5


def parse(argv):
    """The flags, and those for `paceline serve` behind `--`."""
    parser = argparse.ArgumentParser(
        prog="paceline-dynamo",
        description="Run paceline serve as a worker of NVIDIA Dynamo.",
        epilog="What follows -- goes to paceline serve, such as its model, --max-num-seqs or --num-blocks.",
    )
    parser.add_argument("--paceline", default="paceline", help="the program (default: paceline)")
    parser.add_argument("--model-path", required=True, help="folder or hub name with the model's config and tokenizer")
    parser.add_argument("--served-model-name", help="the name that clients use (default: the model path)")
    parser.add_argument("--namespace", default=os.environ.get("DYN_NAMESPACE", "dynamo"))
    parser.add_argument("--component", default="backend")
    parser.add_argument("arguments", nargs="*", metavar="ARGUMENT", help="for paceline serve")
    return parser.parse_args(argv)


class PacelineWorker(LLMEngine):
    """One server, as Dynamo sees it."""

    def __init__(self, flags):
        self.flags = flags
        self.name = flags.served_model_name or flags.model_path
        self.child = self.session = self.load = None
        self.context_length = 0
        self.events = None
        self.tasks = []
        self.replies = {}
        self.stopping = False

    @classmethod
    async def from_args(cls, argv=None):
        flags = parse(argv)
        worker = cls(flags)
        config = WorkerConfig(
            namespace=flags.namespace,
            component=flags.component,
            model_name=flags.model_path,
            served_model_name=worker.name,
            discovery_backend=os.environ.get("DYN_DISCOVERY_BACKEND", "etcd"),
            request_plane=os.environ.get("DYN_REQUEST_PLANE", "tcp"),
            event_plane=os.environ.get("DYN_EVENT_PLANE"),
        )
        return worker, config

    async def start(self, worker_id):
        arguments = ["--served-model-name", self.name, *self.flags.arguments]
        self.child = await Child.start(self.flags.paceline, arguments)
        log.info("paceline serve listens at %s", self.child.url)
        self.session = aiohttp.ClientSession(
            self.child.url, timeout=aiohttp.ClientTimeout(total=None), connector=aiohttp.TCPConnector(limit=0)
        )
        state = await self.state()
        cache, self.events = state["cache"], state["cache"]["kv_events"]
        self.context_length = state["model"]["max_model_len"]
        self.tasks = [asyncio.create_task(self.watch_child()), asyncio.create_task(self.tell_load())]
        return EngineConfig(
            model=self.flags.model_path,
            served_model_name=self.name,
            llm=LlmRegistration(
                context_length=self.context_length,
                kv_cache_block_size=cache["block_tokens"],
                total_kv_blocks=cache["blocks"],
                max_num_seqs=state["slots"]["total"],
                max_num_batched_tokens=state["limits"].get("max_num_batched_tokens"),
            ),
        )

    async def state(self):
        async with self.session.get("/v1/engine") as reply:
            reply.raise_for_status()
            return await reply.json()

    async def kv_event_sources(self):
        return [ZmqSource(endpoint=self.events["endpoint"], topic=self.events["topic"], dp_rank=0)]

    def component_metrics_dp_ranks(self):
        return [0]

    def attach_snapshot_publisher(self, publisher):
        self.load = publisher

    async def watch_child(self):
        """A worker without its engine is none: it leaves as if it were told to, and requests go elsewhere."""
        code = await self.child.ended()
        if not self.stopping:
            log.error("paceline serve has ended with %s", code)
            os.kill(os.getpid(), signal.SIGTERM)

    async def tell_load(self):
        """Blocks in use, as routers weigh them against what is cached."""
        while True:
            await asyncio.sleep(LOAD_SECONDS)
            if self.load is None:
                continue
            try:
                cache = (await self.state())["cache"]
            except aiohttp.ClientError:
                continue
            used, total = cache["blocks_used"], cache["blocks"]
            self.load.publish(
                0,
                ComponentSnapshot(
                    kv_used_blocks=used,
                    kv_total_blocks=total,
                    gpu_cache_usage=used / total,
                    dp_rank=0,
                    kv_cache_hit_rate=cache["prefix"]["hit_rate"],
                ),
            )

    async def generate(self, request, context):
        normalize_request_token_ids(request)
        ended = False
        try:
            async for chunk in self.complete(request, context):
                ended = ended or "finish_reason" in chunk
                yield chunk
        except aiohttp.ClientConnectorError as error:
            raise EngineShutdown(f"paceline serve is gone: {error}") from error
        except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
            if not context.is_stopped():
                raise StreamIncomplete(f"paceline serve broke off: {error}") from error
        finally:
            self.replies.pop(context.id(), None)
        if context.is_stopped() and not ended:
            yield {"token_ids": [], "index": 0, "finish_reason": "cancelled"}
        elif not ended:
            raise StreamIncomplete("paceline serve ended the reply early")

    async def complete(self, request, context):
        try:
            body = mapping.body(request, context.id(), self.name, self.context_length)
        except mapping.Unsupported as error:
            raise InvalidArgument(str(error)) from error
        headers = {"x-request-id": context.id()}
        async with self.session.post("/v1/completions", json=body, headers=headers) as reply:
            await raise_for(reply)
            self.replies[context.id()] = reply
            endings, rest = [], b""
            async for data in reply.content.iter_any():
                if context.is_stopped():
                    return
                *lines, rest = (rest + data).split(b"\n")
                said = mapping.read(lines)
                for chunk in said.chunks:
                    yield chunk
                if said.broken:
                    raise StreamIncomplete(f"paceline serve ended the reply: {said.broken}")
                # The last ones carry the counts, which come behind.
                endings += said.endings
                if said.counts and len(endings) == body.get("n", 1):
                    for ending in endings:
                        yield {**ending, "completion_usage": mapping.usage(said.counts)}
                    return

    async def abort(self, context):
        """The client has left: so does the connection, and with it the request."""
        reply = self.replies.pop(context.id(), None)
        if reply is not None:
            reply.close()

    async def cleanup(self):
        self.stopping = True
        for task in self.tasks:
            task.cancel()
        self.tasks = []
        if self.child is not None:
            await self.child.stop()
            self.child = None
        if self.session is not None:
            await self.session.close()
            self.session = None


async def raise_for(reply):
    """What the server refuses, in Dynamo's terms."""
    if reply.status < 400:
        return
    text = await reply.text()
    if reply.status in (429, 503):
        # Full, going down or failed: another worker may have room.
        raise WorkerUnavailable(text)
    if reply.status < 500:
        raise InvalidArgument(text)
    raise StreamIncomplete(text)
