# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

# For ./dev: run a command as a phase with one line of output, its elapsed time, and a log file.

readonly log_dir=build/logs
ticker_pid=
phase_lines=()

say() { printf '%s\n' "$*"; }

fail() {
  printf 'dev: %s\n' "$*" >&2
  exit 1
}

stop_ticker() {
  [[ -n $ticker_pid ]] || return 0
  kill "$ticker_pid" 2>/dev/null || true
  wait "$ticker_pid" 2>/dev/null || true
  ticker_pid=
}
trap stop_ticker EXIT

# Shows that a phase is alive: prints the last line of its log on a terminal, a line a minute
# elsewhere.
tick() {
  local title=$1 log=$2 start=$SECONDS line
  trap 'exit 0' TERM
  while :; do
    if [[ -t 1 ]]; then
      line=$(tail -n 1 "$log" 2>/dev/null | tr -d '\r' | cut -c 1-50)
      printf '\r\033[K  %-34s %4d s  %s' "$title" $((SECONDS - start)) "$line"
      sleep 0.5 &
    else
      sleep 60 &
    fi
    wait $!
    [[ -t 1 ]] || printf '  %-34s %4d s ...\n' "$title" $((SECONDS - start))
  done
}

# phase TITLE LOG COMMAND...: runs the command with its output in build/logs/LOG.log. When it fails,
# shows what matters of the log and ends the script with status 1.
phase() {
  local title=$1 log=$log_dir/$2.log start=$SECONDS status=0
  shift 2
  mkdir -p "$log_dir"
  : > "$log"
  tick "$title" "$log" &
  ticker_pid=$!
  "$@" > "$log" 2>&1 < /dev/null || status=$?
  stop_ticker
  [[ -t 1 ]] && printf '\r\033[K'
  phase_lines+=("$(printf '  %-34s %4d s' "$title" $((SECONDS - start)))")
  if ((status == 0)); then
    say "${phase_lines[-1]}"
    return 0
  fi
  say "${phase_lines[-1]}  FAILED"
  say
  show_failure "$log"
  show_phases
  say
  show_reason "$log"
  fail "$title failed (status $status); everything it printed is in $log"
}

# Shows how long each phase took.
show_phases() {
  say
  say "phases, $SECONDS s together:"
  printf '%s\n' "${phase_lines[@]}"
}

# show_skipped LOG: says why tests were skipped, how many for each reason, and in which suites of
# GoogleTest and modules of Python. LOG is ctest's LastTest.log: ctest itself counts a suite or
# script as passed if only a part of it was skipped.
show_skipped() {
  awk '
    function note(test, number, suite, reason) {
      if (seen[test]++) return  # The test was run a second time.
      count[reason] += number
      if (!seen[reason, suite]++) suites[reason] = suites[reason] " " suite
    }
    is_reason { reason = $0 }
    { is_reason = / Skipped$/ }
    /^\[  SKIPPED \] .* ms\)$/ { note($4, 1, substr($4, 1, index($4, ".") - 1), reason) }
    /^[A-Za-z0-9_]+ \([a-z0-9_]+\./ { test = $1 $2; module = $2; gsub(/^.|[.].*/, "", module) }
    sub(/^.* \.\.\. skipped ./, "") { note(test, 1, module, substr($0, 1, length($0) - 1)) }
    sub(/^SKIPPED \[/, "") {
      where = $2
      number = $1 + 0
      module = where
      gsub(/.*\/|[.]py:.*/, "", module)
      note(where, number, module, substr($0, index($0, where) + length(where) + 1))
    }
    END { for (why in count) printf "%6d  %s; in%s\n", count[why], why, suites[why] }
  ' "$1" | sort -rn | sed '1s/^/\nskipped tests, and why:\n/'
}

# show_slowest LOG: shows the tests that took longest, from the output of ctest.
show_slowest() {
  say
  say "slowest tests:"
  sed -nE 's/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: ([^ ]+) .* ([0-9.]+) sec$/  \2 s  \1/p' "$1" |
    sort -rn | sed -n '1,10p'
}

# Shows what looks like the reason of a failure in few lines, for readers who see only the end of
# the log.
show_reason() {
  local signs='error:|rror: |\*\*\*(Failed|Timeout|Exception)|FAILED|ERROR|WARNING: ThreadSanitizer'
  { grep -E "$signs" "$1" || tail -n 10 "$1"; } | cut -c 1-200 | tail -n 10
}

# Shows the failed edges of ninja, the failed tests of ctest, or else the last lines. Does not use
# head: when it exits early, SIGPIPE ends the process that writes to it, and with it the whole
# program.
show_failure() {
  local log=$1
  if grep -q '^FAILED: ' "$log"; then
    sed -n '/^FAILED: /,$p' "$log" | sed -n '1,60p'
  elif grep -q 'tests passed, ' "$log"; then
    awk '/ Test +#[0-9]+:/ { failed = /\*\*\*/ && !/\*\*\*Skipped/ }
      failed || /tests passed, / { print }' "$log" |
      grep -v '^      Start' | sed -n '1,200p'
    sed -n '/^The following tests FAILED/,$p' "$log"
  else
    tail -n 40 "$log"
  fi
}
