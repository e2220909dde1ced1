#!/usr/bin/env bash
# Everything a GPU machine is asked, in one call and from sources: builds the CPU kernels, runs the GPU tests and those of
# the CPU kernels on this processor's instruction sets, then the named workloads. Logs and records go to OUT.
#   bash benchmarks/gpu.sh OUT [test|bench|all]
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
out=${1:?a folder for logs and records}
what=${2:-all}
mkdir -p "$out"
export PYTHONPATH=$PWD/src:$PWD PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
python=${PYTHON:-python3}
failed=0

build=$(mktemp -d)
{
    cmake -S . -B "$build" -DPython_EXECUTABLE="$(command -v "$python")" -DCMAKE_BUILD_TYPE=Release &&
        cmake --build "$build" -j "$(nproc)" && cmake --install "$build" --prefix src
} >"$out/cmake.log" 2>&1 || {
    failed=1
    tail -5 "$out/cmake.log"
}
rm -rf "$build"
"$python" -m moesaic doctor || failed=1

# pytest ARGUMENTS..., the end of its log shown
tests() {
    log=$1
    shift
    timeout "${TEST_LIMIT:-300}" "$python" -m pytest -q "$@" >"$out/$log" 2>&1 || failed=1
    grep -v SKIPPED "$out/$log" | tail -15
}
if [ "$what" != bench ]; then
    tests gpu.log tests/gpu # alone: it measures the device's memory
    tests kernels-gpu.log -n 6 -m gpu tests/kernels tests/models tests/unit
    tests kernels-cpu.log -n 8 -m "not gpu and not long" tests/kernels
fi
if [ "$what" != test ]; then
    for name in decode/mixtral-8l decode/qwen3-12l; do
        timeout 200 "$python" -m moesaic bench "$name" --mode fetch_misses --mode cpu_misses --runs "${RUNS:-1}" \
            --record "$out/decode.jsonl" || failed=1
    done
    timeout 200 "$python" -m moesaic bench kernels-cpu --record "$out/kernels-cpu.jsonl" || failed=1
fi
exit $failed
