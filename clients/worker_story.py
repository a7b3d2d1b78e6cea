"""The worker of docs/use/clients/worker.py with handlers for tests; its settings are in the environment."""

import pathlib
import socket
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "docs" / "use" / "clients"))
import worker


def handle(task):
    what, _, detail = task.payload.decode().partition(" ")

    def tell(word):
        print(word, task.deliveries, flush=True)

    if what == "wait":
        host, port = detail.split(":")
        gate = socket.create_connection((host, int(port)))
        tell("began")
        gate.recv(1)
    elif what == "watch":
        tell("began")
        # Only the first delivery is cancelled or requeued.
        if task.deliveries == 1:
            task.over.wait()
            tell("over")
        if detail:
            raise RuntimeError(detail)
    elif what == "fail" and task.deliveries <= int(detail):
        tell("failed")
        raise RuntimeError("no route to host")
    tell("did")


worker.main(handle)
