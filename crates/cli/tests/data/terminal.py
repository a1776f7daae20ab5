"""Runs a program on a terminal of its own and types into it.

Usage: terminal.py STEPS PROGRAM [NAME=VALUE] [ARGUMENT...]

STEPS is a JSON list of pairs: text to wait for on the screen, behind what was waited for before, and what to type then.
Prints all that was on the screen. The exit status is that of the program, or 1 if a step never came. The terminal has as
many columns as $COLUMNS says; whether it shows what is typed once the program has ended goes to stderr.
"""

import fcntl
import json
import os
import pty
import select
import struct
import sys
import termios
import time

PATIENCE = 60.0

steps, program, arguments = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3:]
environment = dict(os.environ)
while arguments and "=" in arguments[0] and not arguments[0].startswith("-"):
    name, value = arguments.pop(0).split("=", 1)
    environment[name] = value

columns = int(environment.get("COLUMNS", 80))
pid, terminal = pty.fork()
if pid == 0:
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    os.execve(program, [program, *arguments], environment)

screen = ""
seen = 0
deadline = time.monotonic() + PATIENCE


def more():
    """Reads what there is; False at the end."""
    global screen
    ready, _, _ = select.select([terminal], [], [], max(deadline - time.monotonic(), 0))
    if not ready:
        print(f"nothing came any more; the screen:\n{screen!r}", file=sys.stderr)
        os.kill(pid, 9)
        sys.exit(1)
    try:
        data = os.read(terminal, 65536)
    except OSError:
        return False
    screen += data.decode(errors="replace")
    return bool(data)


for expected, typed in steps:
    while (found := screen.find(expected, seen)) < 0:
        if not more():
            print(f"the program ended before {expected!r}; the screen:\n{screen!r}", file=sys.stderr)
            sys.exit(1)
    seen = found + len(expected)
    os.write(terminal, typed.encode())
local_modes = None
while more():
    local_modes = termios.tcgetattr(terminal)[3]
print("echo is", "off" if local_modes is not None and not local_modes & termios.ECHO else "on", file=sys.stderr)
sys.stdout.write(screen)
_, status = os.waitpid(pid, 0)
sys.exit(os.waitstatus_to_exitcode(status))
