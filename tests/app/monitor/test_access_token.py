"""The token that opens the pages, and where it is kept."""

import os
import re
import stat

import pytest

from mixprec.app.commands import monitor as command
from mixprec.app.monitor.access_token import VARIABLE, TokenError, draw, kept, take_given, token_file
from mixprec.base.files import TEMPORARY

GIVEN = "of-a-test.0123456789~"


@pytest.fixture
def file(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return token_file(8080)


def _mode(path):
    return stat.S_IMODE(os.lstat(path).st_mode)


def test_a_drawn_token_is_one_that_may_be_given():
    drawn = draw()
    assert len(drawn) > 40
    assert draw() != drawn
    assert take_given({VARIABLE: drawn}) == drawn


def test_what_is_given_is_taken_out_of_the_environment():
    environment = {VARIABLE: GIVEN, "other": "x"}
    assert take_given(environment) == GIVEN
    assert environment == {"other": "x"}
    assert take_given(environment) is None
    assert take_given({VARIABLE: ""}) is None


@pytest.mark.parametrize(
    "token", ["short", 15 * "x", 257 * "x", f"{GIVEN} ", f"{GIVEN}\n", f"{GIVEN};", f"{GIVEN}ü", f"{GIVEN}&"]
)
def test_what_does_not_do_as_a_token_is_one_line_without_it(monkeypatch, capsys, tmp_path, token):
    monkeypatch.setenv(VARIABLE, token)
    assert command.main([str(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == (
        f"error: {VARIABLE}: not a valid token, found {len(token)} characters; "
        "wanted: 16 to 256 letters, digits, '.', '_', '~' and '-'\n"
    )
    assert VARIABLE not in os.environ


@pytest.mark.parametrize("umask", [0, 0o022, 0o777])
def test_only_its_owner_can_read_the_file_and_it_is_gone_afterwards(file, umask):
    file.parent.parent.mkdir(parents=True)
    before = os.umask(umask)
    try:
        with kept(GIVEN, file):
            assert (_mode(file), _mode(file.parent)) == (0o600, 0o700)
            assert file.read_text() == f"{GIVEN}\n"
    finally:
        os.umask(before)
    assert os.listdir(file.parent) == []


def test_the_file_is_gone_after_an_error(file):
    with pytest.raises(SystemExit), kept(GIVEN, file):
        raise SystemExit(143)
    assert os.listdir(file.parent) == []


def test_machines_that_share_a_home_have_files_of_their_own(monkeypatch, file):
    monkeypatch.setattr("platform.node", lambda: "node/7")
    assert token_file(8080).name == "node_7-8080.token"
    assert token_file(8081).name == "node_7-8081.token"


def test_a_file_of_a_killed_server_is_replaced(file):
    file.parent.mkdir(parents=True)
    file.parent.chmod(0o755)
    file.write_text("old\n")
    with kept(GIVEN, file):
        assert (_mode(file), _mode(file.parent)) == (0o600, 0o700)
        assert file.read_text() == f"{GIVEN}\n"


def test_the_file_of_another_server_stays(file):
    with kept(GIVEN, file):
        file.write_text("of another\n")
    assert file.read_text() == "of another\n"


def test_a_link_in_its_place_is_replaced_and_not_followed(file, tmp_path):
    file.parent.mkdir(parents=True)
    (tmp_path / "target").write_text("as it was")
    file.symlink_to(tmp_path / "target")
    with kept(GIVEN, file):
        assert (_mode(file), file.is_symlink()) == (0o600, False)
    assert (tmp_path / "target").read_text() == "as it was"


def _link(folder, elsewhere):
    folder.parent.mkdir(parents=True)
    elsewhere.mkdir()
    folder.symlink_to(elsewhere)


def _regular(folder, elsewhere):
    folder.parent.mkdir(parents=True)
    folder.write_text("")


def _occupied(folder, elsewhere):
    (folder / token_file(8080).name / "x").mkdir(parents=True)


def _above(folder, elsewhere):
    folder.parent.parent.mkdir(parents=True)
    folder.parent.write_text("")


@pytest.mark.parametrize("prepare", [_link, _regular, _occupied, _above])
def test_where_it_cannot_be_kept_nothing_is_left(file, tmp_path, prepare):
    prepare(file.parent, tmp_path / "elsewhere")
    with pytest.raises(TokenError, match=re.escape(str(file.parent.parent))), kept(GIVEN, file):
        raise AssertionError
    assert list((tmp_path / "cache").rglob(f"{TEMPORARY}*")) == []
    assert not (tmp_path / "elsewhere").exists() or os.listdir(tmp_path / "elsewhere") == []


def test_the_folder_of_another_account_is_not_taken(file, monkeypatch):
    file.parent.mkdir(parents=True)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(TokenError, match="it belongs to another account"), kept(GIVEN, file):
        raise AssertionError
