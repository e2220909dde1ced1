#!/usr/bin/env bash
# Everything a GPU machine is asked, in one call and from sources: builds the CPU kernels, runs the GPU tests, then the
# named workloads. Logs and records go to the folder given.
#   bash benchmarks/gpu.sh OUT [test|bench|all]
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
out=${1:?a folder for logs and records}
what=${2:-all}
mkdir -p "$out"
export PYTHONPATH=$PWD/src:$PWD PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
python=${PYTHON:-python3}
build=$(mktemp -d)
cmake -S . -B "$build" -DPython_EXECUTABLE="$(command -v "$python")" -DCMAKE_BUILD_TYPE=Release >"$out/cmake.log" 2>&1 &&
    cmake --build "$build" -j >>"$out/cmake.log" 2>&1 && cmake --install "$build" --prefix src >>"$out/cmake.log" 2>&1 ||
    tail -5 "$out/cmake.log"
rm -rf "$build"
"$python" -m moesaic doctor
failed=0
if [ "$what" != bench ]; then
    timeout 400 "$python" -m pytest -q -m gpu tests >"$out/pytest.log" 2>&1 || failed=1
    tail -40 "$out/pytest.log"
fi
if [ "$what" != test ]; then
    for name in decode/mixtral-8l decode/qwen3-12l; do
        timeout 280 "$python" -m moesaic bench "$name" --mode fetch_misses --mode cpu_misses --runs "${RUNS:-1}" \
            --record "$out/decode.jsonl" 2>&1 | tail -60
        [ "${PIPESTATUS[0]}" = 0 ] || failed=1
    done
fi
exit $failed
