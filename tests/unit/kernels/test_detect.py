"""Instruction sets from /proc/cpuinfo."""

from __future__ import annotations

from moesaic.kernels.cpu.detect import instruction_sets, parse_cpuinfo

ZEN = "processor\t: 0\nflags\t\t: fpu sse2 avx avx2 fma f16c\n\nprocessor\t: 1\nflags\t\t: fpu avx avx2 fma f16c sse2\n"
SAPPHIRE_RAPIDS = (
    "processor\t: 0\nflags\t\t: avx avx2 fma f16c avx512f avx512bw avx512vl avx512dq avx512_vnni avx512_bf16 "
    "avx512_fp16 amx_tile amx_bf16 amx_int8 avx_vnni\n"
)


def test_names_what_the_flags_show():
    assert parse_cpuinfo(ZEN) == ("avx2",)
    assert parse_cpuinfo(SAPPHIRE_RAPIDS) == (
        *("avx2", "avx512", "avx_vnni", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_int8"),
    )


def test_a_set_that_one_processor_lacks_does_not_count():
    assert parse_cpuinfo(ZEN.replace("fma", "", 1)) == ()


def test_a_set_with_a_flag_masked_out_does_not_count():
    assert "avx512" not in parse_cpuinfo(SAPPHIRE_RAPIDS.replace("avx512vl ", ""))


def test_arm_names_its_flags_features():
    assert parse_cpuinfo("processor\t: 0\nFeatures\t: fp asimd sve\n") == ("neon", "sve")


def test_a_system_without_cpuinfo_has_no_known_sets(tmp_path):
    assert instruction_sets(tmp_path / "cpuinfo") == ()
