"""The shell program of a dead man, who continues a stopped victim when nobody else does, and what he says.

It travels over standard input, since on a command line it would carry the very mains and tokens
that mark victims. Everything stands in functions that the last line calls: a program cut off on its
way does nothing. What it says, it says in lines that begin with `faultline`.
"""

from __future__ import annotations

import shlex

from fault.identity import CREATE_TIME_TOLERANCE_S, ROLES, ProcessIdentity, marks_of

# The word that sends him home, and what he says when he is at his post.
RELEASE, STANDING = "release\n", "standing"
# So often, a second apart, he looks for a pause that he has not seen, once nobody could release him any more.
UNSEEN_LOOKS = 15
# However far the clock is set while he waits, it is still this start of the machine.
_ANY_STEP_S = 1e12

# Fields of /proc/<pid>/stat count from behind the last parenthesis, since a name may hold anything;
# field 3 is then the first and field 22, the start in ticks, the twentieth.
# One argument of a command line becomes one line; a line feed inside an argument must not make two.
_LOOK = """
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
  state=$1
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
line() { command=$nl$(tr '\\000\\n' '\\n\\001' 2>/dev/null <"/proc/$1/cmdline")$nl; }
names() { case $command in *"$nl$1$nl"*|*"$nl$2$nl"*) ;; *) return 1 ;; esac; }
look() {
  pid=$1 ticks=$2 created=$3 slack=$4 mark=$5 mark2=$6 main=$7 main2=$8 over=$9
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
  [ "$command" = "$nl$nl" ] && conclude alive
  [ -n "$over" ] || names "$mark" "$mark2" || conclude mismatch token "its command line does not carry $mark"
  names "$main" "$main2" || conclude mismatch role "its command line does not name $main"
  case $now in T|t) conclude stopped ;; *) conclude alive ;; esac
}
"""

# He is there before the victim is stopped, and continues it after so many seconds unless he is released.
# When whoever would release him has gone, he leaves as soon as the victim runs again, by whosever hand; also when it is
# not stopped within UNSEEN_LOOKS: by then nobody is left who would stop it, and a later pause is not his to end.
_STAND_BY = """
stand_by() {
  seconds=$1 looks=$2
  shift 2
  said=$(look "$@")
  case $said in "faultline alive"|"faultline stopped") ;; *) printf '%s\\n' "$said"; return ;; esac
  trap '' HUP INT PIPE
  (
    trap 'kill "$nap"; exit' TERM
    sleep "$seconds" & nap=$!
    wait "$nap"
    [ "$(look "$@")" != "faultline stopped" ] || kill -s CONT "$1"
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


def stand_by_program(victim: ProcessIdentity, seconds: float) -> str:
    """Has `victim` continued after so many seconds, unless RELEASE comes on standard input before. Nobody's child, he
    says `standing` once he is at his post; `gone` or `mismatch PART DETAIL` when there is nobody to be continued.
    """
    stand = f"stand_by {shlex.join([f'{seconds:.3f}', str(UNSEEN_LOOKS), *_checked(victim)])}"
    # The shell is not to read the word that is meant for him; in the background he would have no input of its own.
    return f"{_LOOK}{_STAND_BY}exec 3<&0; {stand} <&3 & exit\n"


def _checked(victim: ProcessIdentity) -> list[str]:
    """What he checks before he continues anybody, as words."""
    known = victim.start_ticks is not None
    role = victim.role
    marks, mains = marks_of(role, victim.token), role.mains
    return [
        str(victim.pid),
        str(victim.start_ticks) if known else "-",
        str(round(victim.create_time * 100)),
        str(round(100 * (_ANY_STEP_S if known else CREATE_TIME_TOLERANCE_S))),
        *(marks[0], marks[-1]),
        *(mains[0], mains[-1]),
        "" if role.under is None else ROLES[role.under].main,
    ]


def words_of(line: str) -> list[str]:
    """What a line says; nothing for one that is not the program's own."""
    first, *words = line.rstrip("\n").split(" ")
    return words if first == "faultline" else []
