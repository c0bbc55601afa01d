"""A process inside a sandbox's network namespace that connects to ports there and hands the sockets out.

It is a program of its own (`python -m ... FD PID PID_NAMESPACE`), because our own process has threads. Each request on the
socket FD is a port; each reply a connected socket, or the reason why there is none. It ends when the other side closes.
"""

from __future__ import annotations

import os
import socket
import struct
import sys

from eval_pipeline.sandbox.local import netns

PORT = struct.Struct("=H")
READY = b"ready"
REPLY_BYTES = 512
_CONNECT_TIMEOUT_S = 5.0


def serve(requests: socket.socket, pid: int, pid_namespace: int) -> None:
    try:
        _enter(pid, pid_namespace)
    except OSError as error:
        requests.send(str(error).encode()[:REPLY_BYTES])
        return
    requests.send(READY)
    while message := requests.recv(PORT.size):
        with socket.socket() as connection:
            try:
                connection.settimeout(_CONNECT_TIMEOUT_S)
                connection.connect(("127.0.0.1", *PORT.unpack(message)))
            except OSError as error:
                requests.send(str(error).encode()[:REPLY_BYTES])
            else:
                connection.settimeout(None)
                socket.send_fds(requests, [READY], [connection.fileno()])


def _enter(pid: int, pid_namespace: int) -> None:
    process = os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY)  # stands for this very process, whoever gets its number
    network = os.open("ns/net", os.O_RDONLY, dir_fd=process)
    if os.stat("ns/pid", dir_fd=process).st_ino != pid_namespace:
        raise ProcessLookupError(f"process {pid} is another one by now")
    netns.enter(network)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3]))
