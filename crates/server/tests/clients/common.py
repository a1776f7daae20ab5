"""What the scripts share: where the server is, an end for what hangs, and a runner that names what failed."""

import faulthandler
import sys
import traceback

BASE, MODEL, KEY = sys.argv[1:4]

# A client that waits for ever fails with a trace of where it waits.
faulthandler.dump_traceback_later(180, exit=True)


def raises(kind, call, *parts):
    """The error of `kind` that `call` raises; its message has all the parts."""
    try:
        call()
    except kind as error:
        for part in parts:
            assert part in str(error), f"{part!r} is not in {error}"
        return error
    raise AssertionError(f"nothing was raised; expected {kind.__name__}")


def run(*checks):
    """Runs all checks; the script fails if one does."""
    failed = 0
    for check in checks:
        try:
            check()
            print(f"ok      {check.__name__}")
        except Exception:
            failed += 1
            print(f"FAILED  {check.__name__}")
            traceback.print_exc(file=sys.stdout)
    sys.exit(1 if failed else 0)
