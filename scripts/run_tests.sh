#!/bin/bash
# Runs a build's whole test suite, and counts its tests in the closing lines.
#   scripts/run_tests.sh BUILD_FOLDER [CTEST_OPTION...]
# A ctest test is a whole binary: libtorch takes a third of a second to load,
# too long to do it once for each of the suite's tests. Each binary leaves its
# counts as XML, which is what is added up here; a script counts as one test.
set -uo pipefail
build=$(realpath "${1:?usage: scripts/run_tests.sh BUILD_FOLDER [CTEST_OPTION...]}")
shift
results=$build/test-results
rm -rf "$results"
mkdir -p "$results"

started=$SECONDS
ctest --test-dir "$build" --output-on-failure --no-tests=error -j5 \
  --output-junit "$results/ctest.junit" "$@"
status=$?
elapsed=$((SECONDS - started))

# Lines "status name [reason]" of all tests.
cases() {
  local name of
  while read -r name of; do
    if [ -s "$results/$name.xml" ]; then
      awk -v binary="$name" '
        function attribute(key) {
          return match($0, " " key "=\"[^\"]*\"") ? \
            substr($0, RSTART + length(key) + 3, RLENGTH - length(key) - 4) : ""
        }
        function flush() {
          if (state) print state, binary "/" test, reason
          state = ""
        }
        /<testcase / {
          flush()
          test = attribute("classname") "." attribute("name"); reason = ""
          state = attribute("result") == "skipped" ? "skipped" : "passed"
          if (attribute("status") == "notrun") state = "disabled"
        }
        /<failure / { state = "failed" }
        /<skipped / {
          reason = attribute("message")
          sub(/^[^&]*&#x0A;/, "", reason)  # the file and line
          gsub(/&#x0A;/, " ", reason)
          gsub(/&apos;|&quot;/, "\047", reason)
        }
        END { flush() }' "$results/$name.xml"
    elif [ "$of" = run ]; then
      echo "passed $name"
    elif [ "$of" = skip ]; then
      echo "skipped $name"
    else
      echo "failed $name (no result: $of)"
    fi
  done < <(sed -n -e '/SKIP_RETURN_CODE/s/.*/skip/p' -e \
    's/.*<testcase name="\([^"]*\)".* status="\([^"]*\)".*/\1 \2/p' \
    "$results/ctest.junit" |
    awk '$1 == "skip" { state = "skip"; next }
         { if (name) print name, state; name = $1; state = $2 }
         END { if (name) print name, state }')
}
cases >"$results/cases.txt"
count() { grep -c "^$1 " "$results/cases.txt"; }

echo
if [ "$(count skipped)" -gt 0 ]; then
  echo "Skipped:"
  sed -n 's/^skipped \([^ ]*\) */  \1: /p' "$results/cases.txt"
fi
if [ "$(count failed)" -gt 0 ]; then
  echo "Failed:"
  sed -n 's/^failed /  /p' "$results/cases.txt"
fi
echo "$(wc -l <"$results/cases.txt") tests in $elapsed s:" \
  "$(count passed) passed, $(count skipped) skipped, $(count failed) failed," \
  "$(count disabled) disabled (processes that other tests start)"
if [ "$status" -eq 0 ]; then
  echo "The test suite passed."
else
  echo "The test suite FAILED."
fi
exit "$status"
