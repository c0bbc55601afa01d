"""Runs inside a sandbox, as `python3 -c SOURCE PORT`: one connection to that port of loopback, led through stdin and stdout.

Both carry frames: four bytes of length, then as many bytes; a length of 0 says that this side has no more to say, and STILL_HERE that
it is there. When stdin ends, or is silent for too long, so does the connection. Standard library only: the interpreter is the app's.
"""

import os
import select
import socket
import struct
import sys
import threading

CHUNK = 65536
LENGTH = struct.Struct(">I")
STILL_HERE = 0xFFFFFFFF
SILENCE_S = 90


def main() -> None:
    line = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    threading.Thread(target=answer, args=(line,), daemon=True).start()
    while (header := take(LENGTH.size)) is not None:
        (size,) = LENGTH.unpack(header)
        if size == 0:
            line.shutdown(socket.SHUT_WR)
        elif size != STILL_HERE:
            line.sendall(take(size) or b"")
    os._exit(0)


def take(size: int) -> bytes | None:
    """None: stdin has ended."""
    found = b""
    while len(found) < size:
        ready, _, _ = select.select([0], [], [], SILENCE_S)
        chunk = os.read(0, min(CHUNK, size - len(found))) if ready else b""
        if not chunk:
            return None
        found += chunk
    return found


def answer(line: socket.socket) -> None:
    try:
        while chunk := line.recv(CHUNK):
            say(LENGTH.pack(len(chunk)) + chunk)
        say(LENGTH.pack(0))
    except OSError:
        os._exit(1)  # the other side must see that this is no end


def say(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


if __name__ == "__main__":
    main()
