#!/bin/sh
# Takes Helios off a cluster, with Helios, its database and Python broken or gone: a shell, awk and Slurm's own
# commands are enough. What Helios wrote is known by its mark, so no record of it is needed: a SiteFactor whose last
# two digits are 37, a TimeMin whose minutes end in 7. Run it as root, SlurmUser or a Slurm operator.
set -u

usage() { cat <<'TEXT'
usage: helios-release.sh [--dry-run] [--keep-unseen] [--state FOLDER] [--table FILE]

  1. creates FOLDER/PAUSED, so that Helios and the priority hook change nothing more
  2. removes the priority hook's table
  3. sets SiteFactor and TimeMin of every pending job that carries Helios's mark back to none
  4. reads them back

Of an array that carries the mark, every pending task is set to none, also one that somebody else has changed.

  --dry-run      say what would be done, do nothing
  --keep-unseen  leave the jobs alone whose SiteFactor Slurm does not show (held, waiting for a time or for another
                 job); without it they are set to none too, and what their priority was and became is printed
  --state FOLDER Helios's control.state_folder; default $HELIOS_CONTROL_STATE_FOLDER, else /var/lib/helios
  --table FILE   the hook's table; default FOLDER/hook/table

Exit status: 0 read back, nothing is left; 1 something is left or could not be read; 2 misused.
To let Helios work again: helios resume, or rm FOLDER/PAUSED
TEXT
}

dry= keep= table=
state=${HELIOS_CONTROL_STATE_FOLDER:-/var/lib/helios}
while [ $# -gt 0 ]; do
  case $1 in
  -n | --dry-run) dry=yes ;;
  --keep-unseen) keep=yes ;;
  --state | --table)
    [ $# -ge 2 ] && [ -n "$2" ] || { echo "helios-release: $1 needs a value" >&2; exit 2; }
    case $1 in --state) state=$2 ;; --table) table=$2 ;; esac
    shift ;;
  -h | --help) usage; exit 0 ;;
  *) echo "helios-release: unknown: $1" >&2; usage >&2; exit 2 ;;
  esac
  shift
done
table=${table:-$state/hook/table}

BATCH=200  # job ids in one scontrol: 200 ids of ten digits are far below any limit of a command line
PASSES=4   # jobs come, go and become eligible while this runs

say() { printf 'helios-release: %s\n' "$*"; }
bad=0
problem() { say "PROBLEM: $*" >&2; bad=1; }

for program in squeue sprio scontrol awk sort mktemp; do
  command -v "$program" >/dev/null || { problem "$program is not on PATH"; exit 1; }
done
# The environment of whoever runs this must not filter or reformat what Slurm prints.
for name in $(env | sed -n 's/^\(S\(QUEUE\|PRIO\)_[A-Z_]*\|SLURM_CLUSTERS\|SLURM_TIME_FORMAT\|SLURM_BITSTR_LEN\)=.*/\1/p'); do
  unset "$name"
done
LC_ALL=C; export LC_ALL
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

# NAME PROGRAM FILE...: what awk makes of the files, sorted, once each. No pipe: the failure of any part must show.
sift() {
  name=$1; shift
  awk "$@" >"$work/raw" && sort -u "$work/raw" >"$work/$name"
}

# Pending jobs into files of lines: factors (id SiteFactor) and queue (id TimeMin priority); from them, ids.
# sprio names a job once for each of its partitions, an array once by its master id.
# TimeMin is [days-]hours:minutes:seconds or minutes:seconds.
look() {
  squeue -h -a -t PD -O 'JobID:24,MinTime:24,PriorityLong:24' >"$work/squeue" &&
    sprio -h -o '%i %S' >"$work/sprio" &&
    sift factors 'NF >= 2 { print $1, $2 }' "$work/sprio" &&
    sift queue 'NF >= 3 { print $1, $2, $3 }' "$work/squeue" &&
    sift marked '{ size = $2 < 0 ? -$2 : $2; if (size % 100 == 37) print $1 }' "$work/factors" &&
    sift unseen 'FILENAME == ARGV[1] { seen[$1]; next } !($1 in seen) { print $1 }' "$work/factors" "$work/queue" &&
    sift limited '{ n = split($2, part, /[-:]/); if (n >= 2 && part[n - 1] % 10 == 7) print $1 }' "$work/queue"
}

count() { awk 'END { print NR }' "$1"; }

# FIELD=VALUE FILE: a job that has started or ended meanwhile is refused and needs nothing; the look afterwards decides.
write() {
  awk -v most=$BATCH '{ line = line (n++ ? "," : "") $1; if (n == most) { print line; line = ""; n = 0 } }
       END { if (n) print line }' "$2" >"$work/batches"
  while read -r ids; do
    scontrol update "jobid=$ids" "$1" >>"$work/answers" 2>&1 </dev/null ||
      printf '%s\n' "$ids" | tr , '\n' >>"$work/refused"
  done <"$work/batches"
}

pause() {
  if [ -e "$1/PAUSED" ]; then say "$1/PAUSED is there"
  elif [ -n "$dry" ]; then say "would create $1/PAUSED"
  elif mkdir -p "$1" && echo "helios-release.sh, $(date -u '+%Y-%m-%d %H:%M:%S') UTC" >"$1/PAUSED"; then
    say "created $1/PAUSED"
  else problem "$1/PAUSED cannot be created: stop Helios yourself"
  fi
}

retract() {
  if [ ! -e "$table" ]; then say "no table at $table"
  elif [ -n "$dry" ]; then say "would remove $table"
  elif rm -f "$table"; then say "removed $table"
  else problem "$table cannot be removed: the hook goes by it until it expires"
  fi
}

# Jobs whose SiteFactor Slurm hides, on two looks: the priority tells what was taken back, except of held jobs.
release_unseen() {
  [ -z "$keep" ] && [ -s "$work/unseen" ] || return 0
  cp "$work/unseen" "$work/once" || return 1
  sleep 2 # a job just submitted, or a controller just reconfigured, is not in sprio for a moment
  look || return 1
  sift blind 'FILENAME == ARGV[1] { once[$1]; next } $1 in once { print $1 }' "$work/once" "$work/unseen" || return 1
  [ -s "$work/blind" ] || return 0
  awk 'FILENAME == ARGV[1] { hidden[$1]; next } $1 in hidden { print $1, $3 }' "$work/blind" "$work/queue" >"$work/before"
  : >"$work/refused"
  write SiteFactor=0 "$work/blind"
  while read -r id; do # of a batch that was refused, Slurm changed those it could
    scontrol update "jobid=$id" SiteFactor=0 </dev/null >/dev/null 2>&1 || echo "$id"
  done <"$work/refused" >"$work/stubborn"
  look || return 1
  sift stuck 'FILENAME == ARGV[1] { no[$1]; next } $1 in no { print $1 }' "$work/stubborn" "$work/unseen" || return 1
  [ ! -s "$work/stuck" ] || problem "$(count "$work/stuck") jobs that Slurm does not show the SiteFactor of were refused"
  say "set SiteFactor of $(count "$work/blind") pending jobs to none that Slurm does not show it of"
  awk 'FILENAME == ARGV[1] { was[$1] = $2; next }
       $1 in was && was[$1] != $3 {
         gone = was[$1] - $3; size = gone < 0 ? -gone : gone
         printf "helios-release: job %s: priority %s, was %s%s\n", $1, $3, was[$1], size % 100 == 37 ? "" : \
           "; that was not Helios'\''s: scontrol update jobid=" $1 " SiteFactor=" gone }' "$work/before" "$work/queue"
}

report_only() {
  say "would set SiteFactor of $(count "$work/marked") pending jobs to none"
  say "would set TimeMin of $(count "$work/limited") pending jobs to none"
  say "SiteFactor of $(count "$work/unseen") pending jobs is not shown by Slurm;" \
    "would ${keep:+not }set it to none"
}

release_marked() {
  # For Helios' next turn: what it then finds gone was taken back by nobody who wants that job left alone. Not with ":",
  # after whose failed redirection a shell ends.
  { true >"$state/RELEASED"; } 2>/dev/null || say "$state/RELEASED cannot be created"
  pass=0
  while [ -s "$work/marked" ] || [ -s "$work/limited" ]; do
    pass=$((pass + 1)); [ $pass -le $PASSES ] || break
    say "SiteFactor of $(count "$work/marked") and TimeMin of $(count "$work/limited") pending jobs: setting to none"
    write SiteFactor=0 "$work/marked"
    write TimeMin=0 "$work/limited"
    look || return 1
  done
}

judge() {
  if [ -s "$work/marked" ] || [ -s "$work/limited" ]; then
    problem "SiteFactor of $(count "$work/marked") and TimeMin of $(count "$work/limited") jobs still stand:" \
      "$(sort -u "$work/marked" "$work/limited" | head -n 10 | tr '\n' ' ')"
    [ ! -s "$work/answers" ] || { say "Slurm's answers:"; sort "$work/answers" | uniq -c | sort -rn | head -n 5; } >&2
  fi
  [ -z "$keep" ] || [ ! -s "$work/unseen" ] ||
    problem "$(count "$work/unseen") pending jobs were left alone whose SiteFactor Slurm does not show"
  [ $bad = 0 ] && say "read back: nothing of Helios is left on pending jobs"
}

: >"$work/answers"
pause "$state"
[ "$table" = "$state/hook/table" ] || pause "${table%/*}" # the hook looks beside its table and one folder above
retract
if ! look; then problem "Slurm does not answer: nothing was read"; exit 1; fi
if [ -n "$dry" ]; then report_only; exit $bad; fi
if ! { release_marked && release_unseen && release_marked; }; then problem "Slurm stopped answering"; fi
judge
exit $bad
