"""Listening sockets inside other network namespaces.

Entering a user namespace needs a process of one thread, and the gateway has more. So a helper process is forked before any
thread starts; it forks once for each socket asked for. It ends when its parent does.
"""

from __future__ import annotations

import os
import socket
import struct
import threading

from eval_pipeline.errors import SandboxError
from eval_pipeline.sandbox.local import netns

PORT = 3128
_BACKLOG = 128
_REQUEST = struct.Struct("=iQ")  # the pid, and the inode its network namespace must have


class ListenerMaker:
    """Make one before any thread starts."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        self._pid = os.fork()
        if self._pid == 0:
            self._socket.close()
            _serve(theirs)
        theirs.close()

    def listen(self, pid: int, namespace: int) -> socket.socket:
        """127.0.0.1:3128 in the network namespace (its inode) of `pid`. Raises SandboxError."""
        with self._lock:
            self._socket.send(_REQUEST.pack(pid, namespace))
            message, descriptors, _, _ = socket.recv_fds(self._socket, 512, 1)
        if not descriptors:
            raise SandboxError(
                f"the proxy can't listen in the sandbox of process {pid}: {message.decode() or 'the helper is gone'}"
            )
        return socket.socket(fileno=descriptors[0])

    def close(self) -> None:
        self._socket.close()
        os.waitpid(self._pid, 0)


def _serve(requests: socket.socket) -> None:
    try:
        while message := requests.recv(_REQUEST.size):
            child = os.fork()
            if child == 0:
                _listen(requests, *_REQUEST.unpack(message))
            _, status = os.waitpid(child, 0)
            if status:
                requests.send(b"the helper failed")
    finally:
        os._exit(0)


def _listen(requests: socket.socket, pid: int, namespace: int) -> None:
    try:
        network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
        if os.fstat(network).st_ino != namespace:
            raise ProcessLookupError(f"process {pid} is another one by now")
        netns.enter(network)
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", PORT))
            listener.listen(_BACKLOG)
            socket.send_fds(requests, [b"ok"], [listener.fileno()])
        os._exit(0)
    except OSError as error:
        requests.send(str(error).encode()[:500])
        os._exit(0)
    finally:
        os._exit(1)
