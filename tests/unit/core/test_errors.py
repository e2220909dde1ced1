from moesaic.core.errors import UserError


def test_a_user_error_is_one_line_of_what_and_fix() -> None:
    error = UserError("config.json: no key 'hidden_size'", "add it")
    assert str(error) == "config.json: no key 'hidden_size': add it"
    assert (error.what, error.fix) == ("config.json: no key 'hidden_size'", "add it")
    assert str(UserError("alone")) == "alone"
    assert isinstance(error, ValueError)
