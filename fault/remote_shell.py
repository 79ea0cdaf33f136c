"""The shell programs that run on a victim's host, which is mostly another one, and what they say.

Each travels over standard input, since on a command line it would carry the very mains and tokens
that mark victims. Everything stands in functions that the last line calls: a program cut off on its
way does nothing. What a program says, it says in lines that begin with `faultline`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from fault.identity import (
    CLOCK_STEP_TOLERANCE_S,
    CREATE_TIME_TOLERANCE_S,
    ROLES,
    LiveProcess,
    ProcessIdentity,
    marks_of,
)
from fault.victims import Snapshot

SIGNAL_REFUSED = 77
_ANY_STEP_S = 1e12
# The word that sends a dead man home, and what he says when he is at his post.
RELEASE, STANDING = "release\n", "standing"
# So often, a second apart, he looks for a pause that he has not seen, once nobody could release him any more.
UNSEEN_LOOKS = 15

# Fields of /proc/<pid>/stat count from behind the last parenthesis, since a name may hold anything;
# field 3 is then the first and field 22, the start in ticks, the twentieth.
_COMMON = """
LC_ALL=C; export LC_ALL
nl='
'
say() { printf 'faultline %s\\n' "$*"; }
conclude() { say "$@"; exit 0; }
fields() {
  stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
  set -f
  set -- ${stat##*) }
  set +f
  state=$1 parent=$2
  shift 19
  started=$1
}
mine() {
  owner=
  { while read -r key value rest; do [ "$key" = Uid: ] && owner=$value && break; done <"/proc/$1/status"; } 2>/dev/null
  [ "$owner" = "${user:=$(id -ru)}" ]
}
clock() {
  hertz=$(getconf CLK_TCK) || exit 78
  boot=
  while read -r key value; do [ "$key" = btime ] && boot=$value; done </proc/stat
  [ -n "$boot" ] || exit 78
}
"""

# One argument of a command line becomes one line; a line feed inside an argument must not make two.
_ACT = """
line() { command=$nl$(tr '\\000\\n' '\\n\\001' 2>/dev/null <"/proc/$1/cmdline")$nl; }
names() { case $command in *"$nl$1$nl"*|*"$nl$2$nl"*) ;; *) return 1 ;; esac; }
spare_own_line() {
  parent=$$
  while [ "$parent" -gt 1 ]; do
    [ "$parent" = "$pid" ] && conclude mismatch pid "it is an ancestor of the shell that was to signal it"
    fields "$parent" || break
  done
}
trace() {
  fields "$pid" || conclude gone
  line "$parent" && names "$main" "$main2" || conclude mismatch role "it is not a process that $main forked"
  fields "$parent" || conclude mismatch role "it is not a process that $main forked"
  line "$parent" && names "$main" "$main2" && conclude mismatch role "it is not a process that $main forked"
  while [ "$parent" -gt 1 ] && line "$parent"; do
    if names "$over" "$over"; then
      mine "$parent" && names "$mark" "$mark2" && return
      break
    fi
    fields "$parent" || break
  done
  conclude mismatch token "it belongs to no $over that carries $mark"
}
act() {
  pid=$1 ticks=$2 created=$3 slack=$4 mark=$5 mark2=$6 main=$7 main2=$8 over=$9
  shift 9
  signal=$1
  fields "$pid" || conclude gone
  case $state in Z|X|x) conclude gone ;; esac
  mine "$pid" || [ ! -d "/proc/$pid" ] || conclude mismatch user "it belongs to another user"
  if [ "$ticks" != - ] && [ "$ticks" != "$started" ]; then
    conclude mismatch create_time "it began at tick $started, the victim at $ticks"
  fi
  clock
  apart=$((boot * 100 + started * 100 / hertz - created))
  if [ "${apart#-}" -gt "$slack" ]; then
    conclude mismatch create_time "it began $apart hundredths of a second after the victim"
  fi
  now=$state
  line "$pid" || conclude gone
  [ "$signal" = probe ] && [ "$command" = "$nl$nl" ] && conclude alive
  [ -n "$over" ] || names "$mark" "$mark2" || conclude mismatch token "its command line does not carry $mark"
  names "$main" "$main2" || conclude mismatch role "its command line does not name $main"
  if [ "$signal" = probe ]; then
    case $now in T|t) conclude stopped ;; *) conclude alive ;; esac
  fi
  spare_own_line
  [ -z "$over" ] || [ "$signal" = CONT ] || trace
  kill -s "$signal" "$pid" && conclude sent
  [ -d "/proc/$pid" ] || conclude gone
  exit 77
}
"""

# A dead man: he is there before the victim is stopped, and continues it after so many seconds unless he is released.
# When whoever would release him has gone, he leaves as soon as the victim runs again, by whosever hand; also when it is
# not stopped within UNSEEN_LOOKS: by then nobody is left who would stop it, and a later pause is not his to end.
_STAND_BY = """
stand_by() {
  seconds=$1 looks=$2
  shift 2
  said=$(act "$@" probe)
  case $said in "faultline alive"|"faultline stopped") ;; *) printf '%s\\n' "$said"; return ;; esac
  trap '' HUP INT PIPE
  (
    trap 'kill "$nap"; exit' TERM
    sleep "$seconds" & nap=$!
    wait "$nap"
    [ "$(act "$@" probe)" != "faultline stopped" ] || act "$@" CONT >/dev/null
  ) <&- 3<&- &
  timer=$!
  pid=$1 seen=
  say standing
  read -r word || word=
  while [ "$word" != release ] && kill -0 "$timer" 2>/dev/null && fields "$pid"; do
    case $state in
      T|t) seen=yes ;;
      *) [ -z "$seen" ] && [ "$looks" -gt 0 ] || break ;;
    esac
    looks=$((looks - 1))
    sleep 1
  done
  kill "$timer" 2>/dev/null || :
}
"""

# Reads only. `read` is the shell's own, so that a host with many processes costs no process for each.
_SURVEY = """
survey() {
  clock
  say clock "$hertz" "$boot" "$$"
  for folder in /proc/[0-9]*; do
    { IFS= read -r stat <"$folder/stat"; } 2>/dev/null || continue
    pid=${folder#/proc/}
    set -f
    set -- ${stat##*) }
    set +f
    [ $# -ge 20 ] && say stat "$pid" "$1" "$2" "${20}"
  done
  grep -l -F "${patterns}" /proc/[0-9]*/cmdline 2>/dev/null | while IFS= read -r file; do
    pid=${file#/proc/}
    mine "${pid%/cmdline}" || continue
    text=$(od -An -v -tx1 2>/dev/null <"$file" | tr -d ' \\n')
    [ -n "$text" ] && say command "${pid%/cmdline}" "$text"
  done
  conclude end
}
"""

# How much CPU time each process uses in 20 ms, long enough for the ticks at which it is counted.
_WATCH = """
used() {
  run=-
  fields "$1" && [ "$started" = "$2" ] || return 0
  read -r run rest 2>/dev/null <"/proc/$1/schedstat"
}
watch() {
  for turn in first second; do
    for one in "$@"; do
      used "${one%:*}" "${one#*:}"
      say "$turn" "${one%:*}" "${run:--}"
    done
    [ "$turn" = second ] || sleep 0.02
  done
  conclude end
}
"""


def act_program(victim: ProcessIdentity, act: str) -> str:
    """Checks `victim` as the local injector does, then does `act`: `probe`, or a signal's name without SIG.

    It concludes with `sent`, `alive`, `stopped`, `gone` or `mismatch PART DETAIL`, or with the status
    SIGNAL_REFUSED.
    """
    return f"{_COMMON}{_ACT}act {shlex.join([*_checked(victim, CLOCK_STEP_TOLERANCE_S), act])}\n"


def stand_by_program(victim: ProcessIdentity, seconds: float, *, detached: bool = False) -> str:
    """Has `victim` continued after so many seconds, unless RELEASE comes on standard input before.

    It says `standing` once it is at its post; `gone` or `mismatch PART DETAIL` when there is nobody to be continued.
    `detached`: it stands there as nobody's child.
    """
    # However far the clock is set meanwhile, it is still this start of the machine.
    stand = f"stand_by {shlex.join([f'{seconds:.3f}', str(UNSEEN_LOOKS), *_checked(victim, _ANY_STEP_S)])}"
    # The shell is not to read the word that is meant for him; in the background he would have no input of its own.
    last = f"exec 3<&0; {stand} <&3 & exit" if detached else f"{stand}; exit"
    return f"{_COMMON}{_ACT}{_STAND_BY}{last}\n"


def _checked(victim: ProcessIdentity, step_s: float) -> list[str]:
    """What the programs check, as words. `step_s`: how far the clock may have been set where the ticks are known."""
    known = victim.start_ticks is not None
    role = victim.role
    marks, mains = marks_of(role, victim.token), role.mains
    return [
        str(victim.pid),
        str(victim.start_ticks) if known else "-",
        str(round(victim.create_time * 100)),
        str(round(100 * (step_s if known else CREATE_TIME_TOLERANCE_S))),
        *(marks[0], marks[-1]),
        *(mains[0], mains[-1]),
        "" if role.under is None else ROLES[role.under].main,
    ]


def survey_program() -> str:
    """Lists all processes, and the command lines of those that name the main of any role."""
    patterns = shlex.quote("\n".join(main for role in ROLES.values() for main in role.mains))
    return f"{_COMMON}{_SURVEY}patterns={patterns}\nsurvey\n"


def watch_program(candidates: Sequence[ProcessIdentity]) -> str:
    """Reads twice, 20 ms apart, how much CPU time each candidate has used; those without ticks are left out."""
    arguments = [f"{one.pid}:{one.start_ticks}" for one in candidates if one.start_ticks is not None]
    return f"{_COMMON}{_WATCH}watch {shlex.join(arguments)}\n"


def words_of(line: str) -> list[str]:
    """What a line says; nothing for one that is not a program's own."""
    first, *words = line.rstrip("\n").split(" ")
    return words if first == "faultline" else []


def parse_watch(said: Iterable[Sequence[str]]) -> dict[int, int]:
    """CPU time in ns by pid between the two readings of `watch_program`; what is not known is left out."""
    first: dict[int, int] = {}
    used: dict[int, int] = {}
    for words in said:
        match words:
            case ["first", pid, run] if run.isdigit():
                first[int(pid)] = int(run)
            case ["second", pid, run] if run.isdigit() and int(pid) in first:
                used[int(pid)] = int(run) - first[int(pid)]
    return used


def parse_survey(said: Iterable[Sequence[str]], host: str) -> Snapshot:
    """The snapshot in the lines (as words) of `survey_program`. Raises ValueError when they make none."""
    states: dict[int, tuple[str, int, int]] = {}
    commands: dict[int, tuple[str, ...]] = {}
    clock: tuple[int, int, int] | None = None
    complete = False
    for words in said:
        match words:
            case ["clock", hertz, boot, shell]:
                clock = int(hertz), int(boot), int(shell)
            case ["stat", pid, state, parent, started]:
                states[int(pid)] = state, int(parent), int(started)
            case ["command", pid, text]:
                commands[int(pid)] = tuple(bytes.fromhex(text).decode(errors="replace").rstrip("\0").split("\0"))
            case ["end"]:
                complete = True
    if clock is None or not complete:
        raise ValueError("the list of processes is not complete")
    hertz_, boot_, shell_ = clock
    parents = {pid: parent for pid, (_, parent, _) in states.items()}
    processes = {
        pid: LiveProcess(
            pid, parents[pid], boot_ + states[pid][2] / hertz_, states[pid][2], command, states[pid][0] in "Tt"
        )
        for pid, command in commands.items()
        if pid in states and states[pid][0] not in "ZXx"
    }
    return Snapshot(processes, parents, frozenset(_line(shell_, parents)), host)


def _line(pid: int, parents: dict[int, int]) -> set[int]:
    """A process and its ancestors."""
    line: set[int] = set()
    while pid > 1 and pid not in line:
        line.add(pid)
        pid = parents.get(pid, 0)
    return line
