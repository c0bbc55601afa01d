"""Runs inside a sandbox, as `python3 -c SOURCE TOKEN tty|pipe COMMAND...`: one shell, reached through a port on loopback.

It prints the port, then takes its connections: each begins with the token and a letter, and whoever lacks the token is cut off.
`d` is the shell's input and output, `e` its stderr (pipe only), `c` control: window sizes (`rows columns` lines) go in, the exit code
comes out at the end. When `c` ends, so does the shell. Standard library only: the interpreter is the app's.
"""

import fcntl
import os
import pty
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading

CHUNK = 65536


def main() -> None:
    token, mode, *command = sys.argv[1:]
    lines = accept(token, "dc" if mode == "tty" else "dec")
    code = on_terminal(command, lines) if mode == "tty" else on_pipes(command, lines)
    for line in lines.values():  # also for those that the shell left running: the other side must see the end
        if line is not lines["c"]:
            shut(line)
    lines["c"].sendall(str(code if code >= 0 else 128 - code).encode())


def accept(token: str, wanted: str) -> dict[str, socket.socket]:
    lines: dict[str, socket.socket] = {}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        while len(lines) < len(wanted):
            line, _ = listener.accept()
            line.settimeout(5)
            said = line.recv(len(token) + 1, socket.MSG_WAITALL).decode("latin-1")
            if said[:-1] == token and said[-1] in wanted:
                line.settimeout(None)
                lines[said[-1]] = line
            else:
                line.close()
    return lines


def on_pipes(command: list[str], lines: dict[str, socket.socket]) -> int:
    data, errors = lines["d"].fileno(), lines["e"].fileno()
    shell = subprocess.Popen(command, stdin=data, stdout=data, stderr=errors, start_new_session=True)
    threading.Thread(target=end_with, args=(lines["c"], shell.pid), daemon=True).start()
    return shell.wait()


def end_with(control: socket.socket, leader: int) -> None:
    while control.recv(CHUNK):
        pass
    os.killpg(leader, signal.SIGKILL)


def on_terminal(command: list[str], lines: dict[str, socket.socket]) -> int:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp(command[0], command)
    data, control = lines["d"], lines["c"]
    while True:
        ready, _, _ = select.select([terminal, data, control], [], [])
        if terminal in ready and not relay(terminal, data):
            break
        if data in ready and not feed(data, terminal):
            break
        if control in ready and not resize(control, terminal):
            break
    os.close(terminal)  # whoever still holds the other end is hung up
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def relay(terminal: int, data: socket.socket) -> bool:
    try:
        chunk = os.read(terminal, CHUNK)
        data.sendall(chunk)
    except OSError:  # EIO: the last process at the terminal has ended
        return False
    return bool(chunk)


def feed(data: socket.socket, terminal: int) -> bool:
    chunk = data.recv(CHUNK)
    while chunk:
        chunk_written = os.write(terminal, chunk)
        chunk = chunk[chunk_written:]
        if not chunk:
            return True
    return False


def resize(control: socket.socket, terminal: int) -> bool:
    said = control.recv(CHUNK)
    if said:
        rows, columns = map(int, said.decode().split()[-2:])
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    return bool(said)


def shut(line: socket.socket) -> None:
    try:
        line.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # the other side was faster


if __name__ == "__main__":
    main()
