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
import signal
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
# The program's end of it stays open here too: it can be asked for its modes once the program has ended, and never before.
terminal, slave = pty.openpty()
fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
pid = os.fork()
if pid == 0:
    os.login_tty(slave)
    os.execvpe(program, [program, *arguments], environment)
ended = os.pidfd_open(pid)

screen = ""
seen = 0
deadline = time.monotonic() + PATIENCE


def more():
    """Reads what there is; False once the program has ended and all was read."""
    global screen
    ready, _, _ = select.select([terminal, ended], [], [], max(deadline - time.monotonic(), 0))
    if not ready:
        print(f"nothing came any more; the screen:\n{screen!r}", file=sys.stderr)
        os.kill(pid, 9)
        sys.exit(1)
    if terminal in ready:
        screen += os.read(terminal, 65536).decode(errors="replace")
    return terminal in ready


for expected, typed in steps:
    while (found := screen.find(expected, seen)) < 0:
        if not more():
            print(f"the program ended before {expected!r}; the screen:\n{screen!r}", file=sys.stderr)
            sys.exit(1)
    seen = found + len(expected)
    os.write(terminal, typed.encode())
while more():
    pass
shows = termios.tcgetattr(slave)[3] & termios.ECHO
print("echo is", "on" if shows else "off", file=sys.stderr)
sys.stdout.write(screen)
_, status = os.waitpid(pid, 0)
sys.exit(os.waitstatus_to_exitcode(status))
