"""The shell that runs inside a Modal sandbox, and the words it is spoken to in. Nothing here knows Modal.

Modal starts whatever is asked for as root. The runner stays root, and what it runs is uid 1000 without capabilities: so neither an exit
code nor the runner's files are the command's to change. A script that reads what an agent left runs as that user, too.
What an image must bring along: a POSIX sh, setpriv and setsid (util-linux), GNU tar, find and head, as Debian has them.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from eval_pipeline.errors import SpecError
from eval_pipeline.sandbox import modal_engine
from eval_pipeline.sandbox.base import OUTPUT_DIR, RUN_DIR, WORLD_DIR

UID = 1000
PATH = "/opt/venv/bin:/usr/local/bin:/usr/bin:/bin"
ENVIRONMENT = {"PATH": PATH, "HOME": "/tmp", "LANG": "C.UTF-8", "EVALS_OUTPUT": OUTPUT_DIR, "EVALS_WORLD": WORLD_DIR}
ROOT_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}

_DROP = ("setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all")
AS_USER = (*_DROP, "--no-new-privs", "--")
RUN_AS_USER = " ".join(("exec", *AS_USER, "setsid --"))
RUN_WITH_ENGINE = RUN_AS_USER.replace("--clear-groups", f"--groups={modal_engine.GID}")

# /usr and what is linked into it, the loader's configuration and / itself stay root's: the runner runs from there. A user may add to
# the sticky / and /etc but not replace in them. All else is the user's, as a cell's own root file system is.
PREPARE = (
    f"set -eu; mkdir -p {WORLD_DIR} {OUTPUT_DIR} /app {RUN_DIR} /opt/venv /home /srv /mnt; : >/etc/ld.so.preload; "
    "for d in /app /opt /home /root /srv /mnt /media /var /out; do "
    f"[ ! -d $d ] || find $d -xdev -exec chown -h {UID}:{UID} {{}} + 2>/dev/null || :; done; "
    f"find /etc -mindepth 1 -xdev -path '/etc/ld.so*' -prune -o -exec chown -h {UID}:{UID} {{}} + 2>/dev/null || :; "
    "chown root:root / /etc; chmod 1777 / /etc /tmp"
)

# PID 1: it collects orphans
ENTRYPOINT = ("sh", "-c", "while :; do sleep 3600 & wait $!; done")

# Input ends as well when whoever sends it is killed: it counts only when all of it came
_TAKE = """take() {
  cat >"$1" && [ "$(wc -c <"$1")" -eq "$2" ] && return
  rm -f -- "$1"; echo "the input was cut short" >&2; return 1
}
"""

# $0: the sandbox's name, $1: bytes. stdin: a tar of the files
SETUP = f"""set -eu; umask 022; d={RUN_DIR}
{_TAKE}[ ! -e "$d/ready-$0" ] || {{ cat >/dev/null; exit 0; }}
for tool in setpriv setsid tar find; do command -v $tool >/dev/null || {{ echo "the image has no $tool" >&2; exit 9; }}; done
mkdir -p $d/inbox $d/logs {OUTPUT_DIR} /tmp
chown {UID}:{UID} {OUTPUT_DIR}
take "$d/.files-$$" "$1"
tar -xf "$d/.files-$$" -C $d --no-same-owner
rm -f "$d/.files-$$"
: >"$d/ready-$0"
"""

# $0: the path below, $1: bytes. stdin: the content. Nothing but root writes there
ADD_FILE = f"""set -eu; umask 022; cd {RUN_DIR}
{_TAKE}case $0 in */*) mkdir -p -- "./${{0%/*}}" ;; esac
take ".new-$$" "$1"; chmod 444 ".new-$$"; mv -f -T -- ".new-$$" "./$0"
"""

# $0: the command's id, $1: bytes. stdin: its script; the first one stands. Ends once the command is on record
START = f"""cd {RUN_DIR} && umask 022 || exit 9
{_TAKE}take "inbox/.$$" "$1" && {{ ln "inbox/.$$" "inbox/$0" 2>/dev/null; rm -f "inbox/.$$"; }}
[ -e "inbox/$0" ] || exit 8
setsid sh runner.sh "$0" </dev/null >/dev/null 2>&1 &
while [ ! -s "logs/$0.journal" ]; do sleep 0.02; done
"""

# $0: the command's id
STOP = f"""pid=''
while read -r _ word value _; do
  case $word in pid) pid=$value ;; exited) exit 0 ;; esac
done <{RUN_DIR}/logs/$0.journal || exit 0
[ -z "$pid" ] || kill -s KILL -- "-$pid" 2>/dev/null || kill -s KILL "$pid" 2>/dev/null || :
"""

# $0: the command's id, $1: bytes
LOGS = f"""cd {RUN_DIR}/logs || exit 0
[ ! -e "$0.stdout" ] || tail -c "$1" "$0.stdout"
[ ! -e "$0.stderr" ] || tail -c "$1" "$0.stderr" >&2
"""

# As the user, in /out. $0: read or write; $1: the path; $2: bytes; $3: where to begin. 4: there is no such file, or none that can be
# read. What is looked at may be another thing by the time it is opened: so no link is followed and no FIFO waited for then, either
FILES = f"""path=$1
cd {OUTPUT_DIR} || {{ [ "$0" = write ] && exit 5; exit 4; }}
{_TAKE}while :; do
  case $path in
  */*) part=${{path%%/*}} path=${{path#*/}} ;;
  *) break ;;
  esac
  [ ! -L "./$part" ] || exit 4
  [ "$0" != write ] || [ -d "./$part" ] || mkdir -- "./$part" || exit 5
  cd -P "./$part" 2>/dev/null || exit 4
done
if [ "$0" = write ]; then
  take "./.evals-$$" "$2" && mv -f -T -- "./.evals-$$" "./$path" && exit 0
  rm -f "./.evals-$$"; exit 5
fi
[ -f "./$path" ] && [ ! -L "./$path" ] || exit 4
dd if="./$path" iflag=nonblock,nofollow,fullblock,skip_bytes,count_bytes bs=65536 skip="$3" count="$2" status=none || exit 4
"""

# As the user. $0: entries, $1: depth. One record an entry: kind, permissions, size, path; X is a directory that can't be entered,
# and after a link's record comes where it leads
LIST = f"""chmod u+rwx {OUTPUT_DIR}; cd {OUTPUT_DIR} || exit 5
find . -mindepth 1 -maxdepth "$1" \\( -type d ! \\( -readable -executable \\) -printf 'X %m %s %P\\0' -prune \\
  -o -type l -printf 'l %m %s %P\\0%l\\0' -o -printf '%y %m %s %P\\0' \\) | head -z -n "$0"
"""

# As root. What was left running is stopped first: it is the same user as what reads, and could end that or write to its output. Who
# will not be stopped ends. A process in state D runs no code until it stops. $0: LIST, $1 and $2: its words, $3: STOP or KILL
STILL_LIST = f"""n=0 signal=$3
while [ $n -lt 200 ]; do
  {" ".join(AS_USER)} sh -c "kill -s $signal -- -1" 2>/dev/null || :
  left=0
  for f in /proc/[0-9]*; do
    [ "$(stat -c %u "$f" 2>/dev/null)" = {UID} ] || continue
    while read -r word value _; do
      case $word$value in State:[RS]) left=1 ;; esac
    done 2>/dev/null <"$f/status"
  done
  [ $left = 1 ] || break
  n=$((n + 1)); [ $n -lt 100 ] || signal=KILL; sleep 0.02
done
[ $left = 0 ] || {{ echo "its processes do not stop" >&2; exit 9; }}
exec {" ".join(AS_USER)} sh -c "$0" "$1" "$2"
"""
GO_ON = "kill -s CONT -- -1 2>/dev/null || :"

# $0: the directory; stdin: names to take, each ended by a NUL
PACK = 'cd "$0" || exit 5; exec tar --null --verbatim-files-from --no-recursion --hard-dereference --format=gnu -T - -cf -'
LOG_NAMES = f'cd {RUN_DIR}/logs || exit 0; for f in *.stdout *.stderr; do [ ! -e "$f" ] || printf \'%s\\0\' "$f"; done'

# What a layer must not take along ends and goes
SEAL = f"""set -eu
{modal_engine.STOP}n=0
while [ $n -lt 100 ]; do
  {" ".join(AS_USER)} sh -c 'kill -s KILL -- -1' 2>/dev/null || :
  left=0
  for f in /proc/[0-9]*; do
    [ "$(stat -c %u "$f" 2>/dev/null)" != {UID} ] || left=1
  done
  [ $left = 1 ] || break
  n=$((n + 1)); sleep 0.05
done
[ $left = 0 ] || {{ echo "its processes do not end" >&2; exit 9; }}
rm -rf {RUN_DIR} {OUTPUT_DIR}
find /tmp -mindepth 1 -delete
sync
"""


def runner() -> bytes:
    return (Path(__file__).resolve().parent / "runner.sh").read_bytes()


def package(files: Mapping[str, bytes]) -> bytes:
    """A tar of the runner and of `files`, whose paths lie under /run/evals; read-only, and the same for the same content."""
    content = {"runner.sh": runner()} | {path.removeprefix(f"{RUN_DIR}/"): data for path, data in files.items()}
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, data in sorted(content.items()):
            info = tarfile.TarInfo(name)
            info.mode, info.size = 0o444, len(data)
            tar.addfile(info, io.BytesIO(data))
    return raw.getvalue()


@dataclass
class Record:
    """What the runner wrote about one command; uptimes in seconds."""

    started: float | None = None
    exited: float | None = None
    code: int | None = None


_STARTED = re.compile(rb"\S+ started (\d{1,12}(?:\.\d{1,9})?)")
_EXITED = re.compile(rb"\S+ exited (\d{1,12}(?:\.\d{1,9})?) (\d{1,3})")


def read_journal(journal: bytes) -> Record:
    """A line without its end is not there yet; one that is no record is passed over."""
    record = Record()
    for line in journal.split(b"\n")[:-1]:
        if (found := _STARTED.fullmatch(line)) is not None:
            record.started = float(found[1])
        elif (found := _EXITED.fullmatch(line)) is not None:
            record.exited, record.code = float(found[1]), int(found[2])
    return record


# Tags are letters, digits, '.', '_' and '-', 63 at most; ours hold anything, in as many as it takes.
_PIECE = 60
_PLAIN = re.compile(rb"[A-Za-z0-9.-]")


def encode_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """Each value in pieces of 60, `KEY`, `KEY.1`, ...; another character than a plain one is `_` and two hex digits."""
    encoded: dict[str, str] = {}
    for key, value in tags.items():
        text = "".join(chr(byte) if _PLAIN.match(bytes([byte])) else f"_{byte:02x}" for byte in value.encode()) or "_"
        for number, start in enumerate(range(0, len(text), _PIECE)):
            encoded[f"{key}.{number}" if number else key] = text[start : start + _PIECE]
    return encoded


def decode_tags(encoded: Mapping[str, str]) -> dict[str, str]:
    pieces: dict[str, dict[int, str]] = {}
    for name, text in encoded.items():
        key, dot, number = name.rpartition(".")
        is_piece = bool(dot) and number.isdecimal()
        pieces.setdefault(key if is_piece else name, {})[int(number) if is_piece else 0] = text
    return {key: _decode("".join(text for _, text in sorted(parts.items()))) for key, parts in pieces.items()}


def _decode(text: str) -> str:
    if text == "_":
        return ""
    return re.sub(rb"_([0-9a-f]{2})", lambda match: bytes([int(match[1], 16)]), text.encode()).decode(errors="replace")


def check_values(what: str, values: Sequence[str]) -> None:
    """Raises SpecError for text that no message can carry."""
    for value in values:
        try:
            value.encode()
        except UnicodeEncodeError:
            raise SpecError(f"{what} is no UTF-8 text, and Modal takes no other") from None
