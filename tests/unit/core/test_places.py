import pytest

from moesaic.core.errors import UserError
from moesaic.core.places import DEVICE, DISK, HOST, HardwareProfile, Lane, LinkSpec, Place, Space, TierSpec

PROFILE = HardwareProfile(
    'two "GPUs" \\ and a tab\t',
    {HOST: TierSpec(1 << 37, 1.05e11, 2e12, 1.33e11), DEVICE: TierSpec(1 << 35, 4.3e12)},
    {(HOST, DEVICE): LinkSpec(5.5e10, 1e-05), (DEVICE, HOST): LinkSpec(5.4e10)},
)


def test_the_profile_survives_its_toml_whatever_its_name() -> None:
    assert HardwareProfile.from_toml(PROFILE.to_toml()) == PROFILE


def test_links_and_source_may_be_left_out() -> None:
    text = 'name = "laptop"\n[tiers.host0]\ncapacity_bytes = 8\nbandwidth_bytes_s = 1e9\n'
    assert HardwareProfile.from_toml(text) == HardwareProfile("laptop", {HOST: TierSpec(8, 1e9)})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = ", "hardware profile"),
        ("[tiers.host0]\ncapacity_bytes = 1\nbandwidth_bytes_s = 1", "'name' is missing"),
        ('name = "x"', "'tiers' is missing"),
        ('name = "x"\ntiers = 3', "hardware profile"),
        ('name = "x"\ncolour = 1\n[tiers]', "unknown key 'colour'"),
        ('name = "x"\n[tiers.gpu0]\ncapacity_bytes = 1\nbandwidth_bytes_s = 1', "'gpu0' is no place"),
        ('name = "x"\n[tiers.host0]\ncapacity_bytes = 1', "bandwidth_bytes_s"),
        ('name = "x"\n[tiers.host0]\ncapacity_bytes = 1\nbandwidth_bytes_s = "fast"', "bandwidth_bytes_s is 'fast'"),
        ('name = "x"\n[tiers.host0]\ncapacity_bytes = 1\nbandwidth_bytes_s = 1\nspeed = 1', "speed"),
        ('name = "x"\n[tiers]\n[links.host0]\nbandwidth_bytes_s = 1', "no place"),
    ],
)
def test_a_profile_that_is_none_is_the_users_fault(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        HardwareProfile.from_toml(text)


@pytest.mark.parametrize(("place", "text"), [(DISK, "disk0"), (HOST, "host0"), (Place(Space.DEVICE, 12), "dev12")])
def test_places_print_and_parse(place: Place, text: str) -> None:
    assert str(place) == text
    assert Place.parse(text) == place


@pytest.mark.parametrize("text", ["", "dev", "dev-1", "gpu0", "dev0x", " dev0", "0"])
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no place"):
        Place.parse(text)


@pytest.mark.parametrize("text", ["dev0", "dev0.", "dev0.gpu", ".load", "dev0.load.x"])
def test_what_is_no_lane_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no (lane|place)"):
        Lane.parse(text)
