"""Run `vllm serve` until the parent process ends: `python server_main.py PARENT_PID ARGUMENTS…`.

`server_process` starts this file as a script, so that neither this process nor the engine processes that vLLM spawns
from it import the project.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

POLL_SECONDS = 1.0


def end_with_parent(parent: int) -> None:
    """Kill this process group, with vLLM's processes, when the parent is gone."""
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=end_with_parent, args=(int(sys.argv[1]),), daemon=True).start()
    sys.argv = ["vllm serve", *sys.argv[2:]]
    # The `vllm` command itself fails in the CPU build: it asks for the version of a distribution named `vllm`.
    from vllm.entrypoints.launchers.api_server.entry import main

    main()
