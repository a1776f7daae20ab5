"""The engine: `paceline serve` as a child that ends with its parent, however that ends."""

import asyncio
import ctypes
import json
import signal

ANNOUNCEMENT = "Paceline is listening on "
PR_SET_PDEATHSIG = 1

EVENTS = {
    "enable_kv_cache_events": True,
    "publisher": "zmq",
    "endpoint": "tcp://127.0.0.1:0",
    "replay_endpoint": "tcp://127.0.0.1:0",
}


def _end_with_parent():
    """The kernel ends the engine when this process dies: a router that has lost the worker must not be served from behind
    its back, and the next worker begins with an empty cache."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Child:
    """A running server."""

    def __init__(self, process, url):
        self.process, self.url = process, url

    @classmethod
    async def start(cls, program, arguments):
        """Starts a server on a free port of this machine and waits until it listens."""
        command = [program, "serve", *arguments, "--host", "127.0.0.1", "--port", "0"]
        command += ["--kv-events-config", json.dumps(EVENTS)]
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, preexec_fn=_end_with_parent
        )
        line = (await process.stdout.readline()).decode().strip()
        if not line.startswith(ANNOUNCEMENT):
            code = await process.wait()
            raise RuntimeError(f"{' '.join(command)} ended with {code} before it listened")
        return cls(process, line.removeprefix(ANNOUNCEMENT))

    async def ended(self):
        """Waits for the end; the exit code."""
        return await self.process.wait()

    async def stop(self):
        """Tells the server to go: requests that can move end at once, the others may finish for as long as it waits."""
        if self.process.returncode is None:
            self.process.terminate()
            await self.process.wait()
