import pytest

from moesaic.core.errors import UserError
from moesaic.core.units import GiB, KiB, MiB, TiB, format_bytes, format_rate, format_seconds, parse_bytes


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("6GiB", 6 * GiB), ("24G", 24 * GiB), ("500 MB", 500_000_000), ("1.5k", 1536), (".5 MiB", MiB // 2),
        ("2tb", 2 * 10**12), ("1 TiB", TiB), ("17", 17), (" 17 B ", 17), (0, 0), (123, 123),
    ],
)  # fmt: skip
def test_sizes_are_read_as_people_write_them(text: str | int, num_bytes: int) -> None:
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize(
    "text",
    [
        "",
        "GiB",
        "six",
        "6 gigs",
        "-1G",
        "1e9",
        "1,5G",
        "6GiB8",
        "inf",
        -1,
        "9" * 400 + "GiB",
        "9" * 5000,
        10**30,
        True,
        6e9,
        None,
    ],
)
def test_what_is_no_size_names_the_field(text: str | int) -> None:
    with pytest.raises(UserError, match="device memory"):
        parse_bytes(text, "device memory")


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"), (1023, "1023 B"), (KiB, "1.00 KiB"), (6442450944, "6.00 GiB"), (10.04 * MiB, "10.0 MiB"),
        (100 * GiB, "100 GiB"), (999.9 * MiB, "1000 MiB"), (1023 * GiB, "1023 GiB"), (5000 * TiB, "5000 TiB"),
        (-2 * GiB, "-2.00 GiB"),
    ],
)  # fmt: skip
def test_sizes_print_with_three_digits_and_no_exponent(num_bytes: float, text: str) -> None:
    assert format_bytes(num_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0031, "3.1 ms"), (2.345, "2.3 s"), (90.0, "90.0 s"), (0.9994, "999 ms"), (0.99951, "1.0 s"),
        (0.00099951, "1 ms"), (19e-6, "19 us"), (4e-8, "40 ns"), (0.0, "0 ns"),
    ],
)  # fmt: skip
def test_times_print_in_their_own_unit_without_exponent(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_rates_are_decimal() -> None:
    assert format_rate(55e9) == "55.0 GB/s"
