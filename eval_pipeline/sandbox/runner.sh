# The command runner. Two ways to be called:
#   runner.sh        PID 1 of a local sandbox: stdin is the bell, stdout the journal, both held open by the host
#   runner.sh ID     one command, where the platform starts processes itself
#
# Bell:    `ulimit ...`, N, N lines of `export NAME='value'` (the secrets), then any of `start ID`, `stop ID`, an empty line
# Journal: `ready`, `ID started UPTIME`, `ID exited UPTIME CODE`, of the one command also `ID pid PID`; appended, one write a line
# Command: inbox/ID is a script that ends in `exec setsid ...`; it evaluates $secrets only when it was started with them
#
# Builtins only: each fork or exec here is paid once per cell. /proc/uptime is the monotonic clock a shell can read.

run=${EVALS_RUN_DIR:-/run/evals}
secrets=''
seen=' '
live=''
newline='
'
now() {
  read -r uptime _ </proc/uptime
}

launch() {
  now
  echo "$1 started $uptime"
  (. "$run/inbox/$1") </dev/null >"$run/logs/$1.stdout" 2>"$run/logs/$1.stderr" &
  pid=$!
}

finish() {
  wait "$2"
  set -- "$1" $? && now
  echo "$1 exited $uptime $2"
}

# `jobs` collects the dead (orphans too) without waiting; after that a dead command's pid answers no signal.
reap() {
  jobs -p >/dev/null
  left=''
  for entry in $live; do
    if kill -0 "${entry##*:}" 2>/dev/null; then
      left="$left $entry"
    else
      finish "${entry%:*}" "${entry##*:}"
    fi
  done
  live=$left
}

stop() {
  for entry in $live; do
    [ "${entry%:*}" = "$1" ] || continue
    kill -s KILL -- "-${entry##*:}" 2>/dev/null || kill -s KILL "${entry##*:}" 2>/dev/null
  done
}

if [ $# -gt 0 ]; then
  (set -C && : >"$run/logs/$1.claim") 2>/dev/null || exit 0
  exec >>"$run/logs/$1.journal"
  launch "$1" && echo "$1 pid $pid"
  finish "$1" "$pid"
  exit 0
fi

read -r line && eval "$line"
read -r lines
while [ "$lines" -gt 0 ]; do
  IFS= read -r line
  secrets=$secrets$line$newline
  lines=$((lines - 1))
done
trap : CHLD
echo ready; echo >&5; exec 5>&- # 5 is for who waits now, and may be dead by now; the journal for all who come later
while :; do
  verb='' id=''
  read -r verb id # a child's end interrupts it, so the dead are collected at once
  reap
  case $verb in
  start) case $seen in *" $id "*) ;; *) seen="$seen$id " && launch "$id" && live="$live $id:$pid" ;; esac ;;
  stop) stop "$id" ;;
  esac
done
