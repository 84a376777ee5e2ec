"""Run a script as `python script args` would, but leave without tearing the interpreter down.

[Note: leaving a gloo process]
A gloo worker thread drops its last collective after the waiting thread has gone on, and that may release a Python
object. If the interpreter is being finalised by then, CPython 3.11 ends the thread by unwinding it, C++ calls
`std::terminate`, and a rank that had finished its work aborts ("terminate called without an active exception").
Plain FSDP2 scripts do so too (torch 2.13, busy machine: 2 of 38 runs); torch keeps the process groups in caches, so
destroying them does not join the threads.
"""

import os
import runpy
import sys
import traceback


def main() -> None:
    sys.argv = sys.argv[1:]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    code = 0
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if code and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
