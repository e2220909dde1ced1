"""The style rules catch what they are for, and pass what is allowed."""

from __future__ import annotations

import pytest

from tools.check_style import breaches, lines_with_code


def found(text: str, path: str = "src/moesaic/core/x.py") -> list[str]:
    return list(breaches(path, text))


def function(num_lines: int) -> str:
    body = "".join(f"    x{i} = {i}\n\n    # why\n" for i in range(num_lines))
    return f'"""What."""\n\n\ndef f():\n    """Doc.\n\n    More.\n    """\n{body}'


def test_a_clean_file_passes():
    assert found('"""What."""\n') == []


def test_an_empty_file_needs_no_docstring_and_a_full_one_does():
    assert found("") == []
    assert found("x = 1\n") == ["src/moesaic/core/x.py:1: no docstring that says what the file is"]
    assert found("x = 1\n", "tests/unit/test_x.py") == []


def test_a_file_may_have_500_lines():
    assert found('"""What."""\n' + "x = 1\n" * 499) == []
    assert found('"""What."""\n' + "x = 1\n" * 500) == ["src/moesaic/core/x.py:1: 501 lines, at most 500"]


def test_a_function_may_have_60_lines_of_code_docstring_and_comments_apart():
    assert found(function(60)) == []
    assert found(function(61)) == ["src/moesaic/core/x.py:4: f has 61 lines of code, at most 60"]


@pytest.mark.parametrize("parameters", ["self, a, b, c, d, e, f, g, h", "a, /, b, c, d, *args, e, f, g, h, **kwargs"])
def test_a_function_may_have_8_parameters(parameters):
    assert found(f'"""What."""\ndef f({parameters}): pass\n') == []
    more = found(f'"""What."""\ndef f(z, {parameters.replace("self, ", "")}): pass\n')
    assert more == ["src/moesaic/core/x.py:2: f has 9 parameters, at most 8"]


def test_a_verbs_flags_are_its_own_affair():
    text = '"""What."""\ndef f(a, b, c, d, e, f, g, h, i): pass\n'
    assert found(text, "src/moesaic/cli/x.py") == []


def test_a_tests_cases_are_its_own_affair_and_a_helpers_parameters_are_not():
    text = '"""What."""\ndef NAME(a, b, c, d, e, f, g, h, i): pass\n'
    assert found(text.replace("NAME", "test_x"), "tests/unit/test_x.py") == []
    assert len(found(text.replace("NAME", "make_x"), "tests/unit/test_x.py")) == 1


@pytest.mark.parametrize("line", ["os.environ['A']", "os.getenv('A')", "from os import environ"])
def test_the_environment_is_read_in_cli_only(line):
    text = f'"""What."""\nimport os\n{line}\n'
    assert found(text) == ["src/moesaic/core/x.py:3: environment variables are read in cli only"]
    assert found(text, "src/moesaic/cli/x.py") == []
    assert found(text, "tests/unit/test_x.py") == []


def test_a_string_over_lines_is_code_on_each():
    assert lines_with_code('x = """a\nb\nc"""\n\n# no\ny = 1\n') == {1, 2, 3, 6}
