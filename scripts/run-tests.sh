#!/usr/bin/env bash
# Runs the tests: run-tests.sh PYTHON [pytest arguments]. What fails is run once more, alone, and the end says so: on a
# busy machine gloo's threads abort about three in a hundred ranks at their exit, long after the test's own work is done.
# A test that fails twice has failed.
set -uo pipefail
python=$1
shift
"$python" -m pytest "$@"
code=$?
[ "$code" -eq 1 ] || exit "$code"
echo
echo "Some tests failed. Once more, only those:"
"$python" -m pytest --last-failed --last-failed-no-failures none "$@"
again=$?
if [ "$again" -eq 0 ]; then
  echo "Tests failed in the first round and passed alone: see above which."
fi
exit "$again"
