#!/usr/bin/env bash
# Everything that needs a CUDA GPU, within eight minutes: tests/gpu/, then the comparison
# of predictions with this GPU, which writes a dated table to docs/measurements/ (or to
# the folder named by RESULTS).
#
#   bash bench/gpu_check.sh
#
# Runs with the first Python whose torch sees the GPU: $PYTHON, .venv, python3. It installs
# nothing: what is missing there is named, and workloads without their package are skipped.
set -uo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}" HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1

has_cuda() { "$1" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; }
python=
for candidate in "${PYTHON:-}" .venv/bin/python python3; do
  if [ -n "$candidate" ] && has_cuda "$candidate"; then python=$candidate; break; fi
done
if [ -z "$python" ]; then
  echo "No CUDA GPU that a Python here can use. Set PYTHON to one whose torch sees the GPU." >&2
  exit 2
fi

missing=$("$python" - <<'PY'
from importlib.util import find_spec
needed = ["numpy", "scipy", "typer", "rich", "pytest", "hypothesis"]
print(*[name for name in needed if find_spec(name) is None])
PY
)
if [ -n "$missing" ]; then
  echo "Missing in $python: $missing. Install with: $python -m pip install $missing" >&2
  exit 2
fi

failed=0
start=$SECONDS
# The coverage and xdist options of the usual runs are not needed here.
timeout 150 "$python" -m pytest -q -p no:cacheprovider -m gpu tests/gpu || failed=1
echo "tests/gpu took $((SECONDS - start)) s"
left=$((460 - (SECONDS - start)))
# A workload that has begun may take a minute more.
timeout "$left" "$python" bench/gpu_accuracy.py --seconds "$((left - 70))" \
  ${RESULTS:+--out "$RESULTS"} || failed=1
echo "all took $((SECONDS - start)) s"
exit $failed
